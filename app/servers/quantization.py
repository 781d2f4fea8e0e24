"""Weights in few bits in the words of each server.

A quantized checkpoint needs no option: its config.json says what it is. What is rounded while it is
loaded needs one, where the server can do it.

Sources: vLLM's quantization page (fp8 online, bitsandbytes in flight), SGLang's quantization page
(torchao and fp8), TensorRT-LLM's quantization page (checkpoints that were made before).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.config import EngineConfig

SETTINGS_OF_IT = ("quantization", "quantization_group_size")
STORED = ("auto", "none", "awq", "gptq", "compressed-tensors", "bitsandbytes")
"""Plain, or as a checkpoint stores it: nothing to say to a server."""

VLLM: Mapping[str, tuple[str, ...]] = {
    "fp8": ("--quantization", "fp8"),
    "nf4": ("--quantization", "bitsandbytes"),
}
SGLANG: Mapping[str, tuple[str, ...]] = {
    "int8": ("--torchao-config", "int8wo"),
    "fp8": ("--quantization", "fp8"),
}
TENSORRT_LLM: Mapping[str, tuple[str, ...]] = {}
_TORCHAO_GROUPS = (32, 64, 128, 256)
_MAKE = "Save it quantized (inferdeck quantize) and serve that folder: it needs no option."


def words(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> list[object]:
    """Options that round the weights as `config` does; none where the server has nothing so."""
    method, size = config.quantization, config.quantization_group_size
    if method == "int4" and own is SGLANG and size in _TORCHAO_GROUPS:
        return ["--torchao-config", f"int4wo-{size}"]
    return list(own.get(method, ()))


def known(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> Collection[str]:
    """The settings that need no mention as missing."""
    if config.quantization in STORED or words(config, own):
        return SETTINGS_OF_IT
    # the group size says nothing without the method, which is what is missing
    return ("quantization_group_size",)


def notes(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What is not quite the same, or what to do in place of it."""
    method = config.quantization
    if method in STORED:
        return []
    if not words(config, own):
        return [f"Rounding to {method} while loading is not to be had there. {_MAKE}"]
    found = [f"{method}: the server rounds with code of its own; measure its quality there."]
    if own is VLLM and method == "fp8":
        found.append("fp8 there also rounds the activations, which takes a GPU that computes fp8.")
    if own is SGLANG and method == "int4":
        found.append("int4wo holds weights by groups as here, and runs on GPUs alone.")
    return found
