"""The precision of the KV cache in the words of each server.

Sources: vLLM's CacheDType (vllm/config/cache.py), SGLang's quantized KV cache page, TensorRT-LLM's
KvCacheConfig. Where keys and values are stored differently none of them has a word for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import EngineConfig

SETTING = "kv_cache_dtype"
VLLM = {"fp8": "fp8_per_token_head", "int8": "int8_per_token_head"}
SGLANG = {"fp8": "fp8_e4m3"}
TENSORRT_LLM = {"fp8": "fp8"}


def word(config: EngineConfig, names: Mapping[str, str]) -> str | None:
    """The server's name of what keys and values are stored in; None where it is the model's
    precision, or where the server lacks it."""
    keys, values = config.kv_dtype
    return names.get(keys) if keys == values else None


def known(config: EngineConfig, names: Mapping[str, str]) -> tuple[str, ...]:
    """The setting, where it needs no mention."""
    is_said = word(config, names) is not None or not config.kv_dtype.is_quantized
    return (SETTING,) if is_said else ()


def vllm_notes(config: EngineConfig) -> list[str]:
    name = word(config, VLLM)
    if name is None:
        return []
    older = " (older ones have fp8_e4m3, with one scale a layer)" if name == VLLM["fp8"] else ""
    return [f"--kv-cache-dtype {name} needs a recent vLLM{older}."]


def scale_notes(config: EngineConfig, names: Mapping[str, str]) -> list[str]:
    """For servers whose cache has one scale a layer."""
    if word(config, names) is None:
        return []
    return [
        "KV precision: one scale a layer there, 1.0 unless the checkpoint brings it, and one for "
        "each token and head here: measure the quality there."
    ]
