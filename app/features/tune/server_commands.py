"""Shared parts of the translations to other servers' options.

Only equivalent options are written; settings without an equivalent are listed, unknown ones too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config import SETTINGS, EngineConfig
from engine.hardware.device_map import ALL
from engine.hardware.devices import CPU


@dataclass(frozen=True, slots=True)
class Facts:
    """Resolved values. `capacity`: tokens in the KV cache; `dtype`: of dtype auto; `host_layers`:
    layers on the CPU."""

    capacity: int | None = None
    dtype: str = ""
    host_layers: int = 0


NO_FACTS = Facts()

UNTRANSLATED = ("model", "device", "num_threads", "adaptive_threads")
"""Not translated: the model is an argument, device and threads belong to the machine."""

VERIFY = "Tuned with Inferdeck: measure again on the target server and machine."


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """`text`: for a POSIX shell. `missing`: settings without equivalent. `notes`: differences."""

    server: str
    text: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comments(self) -> str:
        """Notes and missing settings."""
        lines = [*self.notes, VERIFY]
        if self.missing:
            lines.insert(0, f"Not supported by {self.server}: {', '.join(self.missing)}.")
        return "\n".join(lines)

    @property
    def as_script(self) -> str:
        """The command, then the notes as comments."""
        comments = "".join(f"# {line}\n" for line in self.comments.splitlines())
        return f"{self.text}\n{comments}"


def without_equivalent(config: EngineConfig, known: Collection[str]) -> tuple[str, ...]:
    """ "Batching (static)" of every setting that was changed and is not among `known`."""
    return tuple(
        f"{setting.label} ({as_words(getattr(config, name))})"
        for name, setting in SETTINGS.items()
        if name not in known and name not in UNTRANSLATED and is_changed(config, name)
        and (name, getattr(config, name)) != ("gpu_layers", ALL)  # as it is in every server
    )  # fmt: skip


def division_note(facts: Facts, server: str) -> list[str]:
    """Note for CPU offload."""
    if not facts.host_layers:
        return []
    layers = "1 layer" if facts.host_layers == 1 else f"{facts.host_layers} layers"
    return [f"CPU offload ({layers}) is not carried over; {server} runs all layers on GPUs."]


def ranks_note(config: EngineConfig, server: str) -> list[str]:
    """Note for tensor parallel on CPU threads."""
    count = config.tensor_parallel_size
    if count == 1 or config.device != CPU:
        return []
    return [f"Tensor parallel {count} uses CPU threads here; {server} uses {count} GPUs."]


def precision_note(config: EngineConfig, facts: Facts) -> list[str]:
    """Note for dtype auto."""
    if config.dtype != "auto" or not facts.dtype:
        return []
    return [f"The server chooses the dtype; here auto is {facts.dtype}."]


def is_changed(config: EngineConfig, name: str) -> bool:
    return bool(getattr(config, name) != SETTINGS[name].default)


def as_words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def command_line(words: Sequence[object]) -> str:
    """For a POSIX shell, one option per line."""
    quoted = [shlex.quote(str(word)) for word in words]
    lines: list[str] = []
    for word in quoted:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


KV_SETTING = "kv_cache_dtype"
KV_VLLM = {"fp8": "fp8_per_token_head", "int8": "int8_per_token_head"}
KV_SGLANG = {"fp8": "fp8_e4m3"}
KV_TENSORRT_LLM = {"fp8": "fp8"}


def kv_option(config: EngineConfig, names: Mapping[str, str]) -> str | None:
    """The server's name of the KV dtype; None for the model's dtype or an unsupported one."""
    keys, values = config.kv_dtype
    return names.get(keys) if keys == values else None


def known_kv(config: EngineConfig, names: Mapping[str, str]) -> tuple[str, ...]:
    """The setting, where it is carried over or unquantized."""
    is_said = kv_option(config, names) is not None or not config.kv_dtype.is_quantized
    return (KV_SETTING,) if is_said else ()


def vllm_kv_notes(config: EngineConfig) -> list[str]:
    name = kv_option(config, KV_VLLM)
    if name is None:
        return []
    older = " (older versions: fp8_e4m3, one scale per layer)" if name == KV_VLLM["fp8"] else ""
    return [f"--kv-cache-dtype {name} needs a recent vLLM{older}."]


def kv_scale_notes(config: EngineConfig, names: Mapping[str, str]) -> list[str]:
    """For servers with one KV scale per layer."""
    if kv_option(config, names) is None:
        return []
    return [
        "KV dtype: one scale per layer there (1.0 unless in the checkpoint), one per token and "
        "head here. Measure the quality there."
    ]


WEIGHT_SETTINGS = ("quantization", "quantization_group_size")
STORED = ("auto", "none", "awq", "gptq", "compressed-tensors", "bitsandbytes")
"""Unquantized or stored in the checkpoint: no option needed."""

WEIGHTS_VLLM: Mapping[str, tuple[str, ...]] = {
    "fp8": ("--quantization", "fp8"),
    "nf4": ("--quantization", "bitsandbytes"),
}
WEIGHTS_SGLANG: Mapping[str, tuple[str, ...]] = {
    "int8": ("--torchao-config", "int8wo"),
    "fp8": ("--quantization", "fp8"),
}
WEIGHTS_TENSORRT_LLM: Mapping[str, tuple[str, ...]] = {}
_TORCHAO_GROUPS = (32, 64, 128, 256)
_MAKE = "Save a quantized checkpoint (inferdeck quantize) and serve that folder."


def weight_options(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> list[object]:
    """Options that quantize the weights on load; none where not supported."""
    method, size = config.quantization, config.quantization_group_size
    if method == "int4" and own is WEIGHTS_SGLANG and size in _TORCHAO_GROUPS:
        return ["--torchao-config", f"int4wo-{size}"]
    return list(own.get(method, ()))


def known_weights(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> Collection[str]:
    """Weight settings that are carried over."""
    if config.quantization in STORED or weight_options(config, own):
        return WEIGHT_SETTINGS
    # only the method is listed as missing
    return ("quantization_group_size",)


def weight_notes(config: EngineConfig, own: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Differences, or the alternative."""
    method = config.quantization
    if method in STORED:
        return []
    if not weight_options(config, own):
        return [f"Quantizing to {method} on load is not supported there. {_MAKE}"]
    found = [f"{method}: the server quantizes differently. Measure the quality there."]
    if own is WEIGHTS_VLLM and method == "fp8":
        found.append("fp8 there also quantizes activations and needs a GPU with FP8 support.")
    if own is WEIGHTS_SGLANG and method == "int4":
        found.append("int4wo uses the same groups and needs a GPU.")
    return found


DRAFT_SETTINGS = (
    "speculative_method",
    "speculative_model",
    "num_speculative_tokens",
    "speculative_adaptive",
    "prompt_lookup_min",
    "prompt_lookup_max",
)
DRAFTS_VLLM = ("draft_model", "ngram", "eagle3")
DRAFTS_SGLANG = {"draft_model": "STANDALONE", "ngram": "NGRAM", "eagle3": "EAGLE3"}
DRAFTS_TENSORRT_LLM = {"draft_model": "DraftTarget", "ngram": "NGram"}


def drafts(config: EngineConfig) -> bool:
    return config.speculative_method != "off" and config.num_speculative_tokens > 0


def known_drafts(
    config: EngineConfig, methods: Mapping[str, str] | tuple[str, ...]
) -> tuple[str, ...]:
    """Speculation settings that are carried over or off; an unsupported method is missing."""
    if not drafts(config) or config.speculative_method in methods:
        return DRAFT_SETTINGS
    return tuple(name for name in DRAFT_SETTINGS if name != "speculative_method")


def draft_notes(config: EngineConfig, methods: Mapping[str, str] | tuple[str, ...]) -> list[str]:
    """Differences."""
    if not drafts(config) or config.speculative_method not in methods:
        return []
    found = []
    if config.speculative_adaptive:
        label = SETTINGS["speculative_adaptive"].label
        found.append(
            f"{label}: the server always drafts {config.num_speculative_tokens} tokens."
        )
    return found


def vllm_drafts(config: EngineConfig) -> list[object]:
    if not drafts(config) or config.speculative_method not in DRAFTS_VLLM:
        return []
    values: dict[str, object] = {
        "method": config.speculative_method,
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    if config.speculative_method == "ngram":
        values["prompt_lookup_min"] = config.prompt_lookup_min
        values["prompt_lookup_max"] = config.prompt_lookup_max
    else:
        values["model"] = config.speculative_model
    return ["--speculative-config", json.dumps(values)]


def sglang_drafts(config: EngineConfig) -> list[object]:
    algorithm = DRAFTS_SGLANG.get(config.speculative_method)
    if not drafts(config) or algorithm is None:
        return []
    drafted = config.num_speculative_tokens
    words: list[object] = ["--speculative-algorithm", algorithm]
    if config.speculative_method != "ngram":
        words += ["--speculative-draft-model-path", config.speculative_model]
        words += ["--speculative-num-steps", drafted, "--speculative-eagle-topk", 1]
    # includes the token verified first
    return [*words, "--speculative-num-draft-tokens", drafted + 1]


def tensorrt_llm_drafts(config: EngineConfig) -> list[str]:
    """Lines of its YAML file."""
    decoding = DRAFTS_TENSORRT_LLM.get(config.speculative_method)
    if not drafts(config) or decoding is None:
        return []
    lines = [
        "disable_overlap_scheduler: true",
        "speculative_config:",
        f"  decoding_type: {decoding}",
        f"  max_draft_len: {config.num_speculative_tokens}",
    ]
    if config.speculative_method == "ngram":
        lines.append(f"  max_matching_ngram_size: {config.prompt_lookup_max}")
    else:
        lines.append(f"  speculative_model_dir: {json.dumps(config.speculative_model)}")
    return lines
