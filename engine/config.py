"""The engine's configuration, and one registry of its settings (`SETTINGS`).

Each setting is declared once: name, default, range, label, help, and what a change of it costs
(`Change`). The command line, the settings panel and the documentation are made from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.errors import ConfigError
from engine.hardware.device_map import AUTO, check_gpu_layers
from engine.hardware.device_map import CHOICES as GPU_LAYERS
from engine.hardware.devices import CHOICES as DEVICES
from engine.hardware.devices import check_device
from engine.numerics.kv_dtype import NAMES as KV_DTYPES
from engine.numerics.kv_dtype import KVDtype, check_kv_dtype, parse_kv_dtype
from engine.units import setting_text


class Change(StrEnum):
    """What it takes to apply a changed setting."""

    LIVE = "live"  # from the next step
    CACHE_REBUILD = "cache rebuild"  # running requests are preempted and resume
    RELOAD = "reload"  # the model is loaded again


LARGEST_BUDGET = 2048
"""Tokens: the most that is chosen for max_num_batched_tokens None."""

TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared engine setting. `minimum`/`maximum` are inclusive; None means unbounded.
    `check_other` raises ConfigError unless a value beside the choices is allowed; `other` is the
    form of such values."""

    name: str
    type: type
    default: Any
    change: Change
    label: str
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    optional: bool = False
    check_other: Callable[[Any], None] | None = None
    other: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> None:
        """Raise ConfigError unless `value` is allowed for this setting."""
        if value is None and self.optional:
            return
        if self.choices:
            if value not in self.choices:
                if self.check_other is None:
                    raise ConfigError(
                        f"{self.name} is {value!r}.", f"Choose one of {', '.join(self.choices)}."
                    )
                self.check_other(value)
            return
        accepted: tuple[type, ...] = (int, float) if self.type is float else (self.type,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.type is not bool):
            raise ConfigError(f"{self.name} is {value!r}.", f"Use {TYPE_NAMES[self.type]}.")
        if isinstance(value, (int, float)):
            low = self.minimum is None or value >= self.minimum  # which NaN is not
            if not low or not (self.maximum is None or value <= self.maximum):
                raise ConfigError(f"{self.name} is {value}.", f"Use {self.range_text}.")

    @property
    def range_text(self) -> str:
        """ "1 to 1,024 requests"."""
        low, high = (_number(bound) for bound in (self.minimum, self.maximum))
        bounds = f"{low} to {high}" if high else f"at least {low}"
        return f"{bounds} {self.unit}".rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _setting(type_: type, default: Any, change: Change, label: str, help_: str, **kw: Any) -> Any:
    return dataclasses.field(
        default=default,
        metadata={"type": type_, "change": change, "label": label, "help": help_, **kw},
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All settings of the engine. Immutable: see `replace` and `change_class`."""

    model: str = _setting(
        str, "", Change.RELOAD, "Model", "Model folder (Hugging Face checkpoint)."
    )
    device: str = _setting(
        str, "auto", Change.RELOAD, "Device",
        "Device to run the model on. auto: the first usable NVIDIA GPU, else the CPU.",
        choices=DEVICES, check_other=check_device, other="cuda:N",
    )
    gpu_layers: str = _setting(
        str, AUTO, Change.RELOAD, "GPU layers",
        "Number of layers on the GPU. CPU offload: all other layers and their KV cache are on the "
        "CPU. auto: as many layers as fit in GPU memory.",
        choices=GPU_LAYERS, check_other=check_gpu_layers, other="N",
    )
    dtype: str = _setting(
        str, "auto", Change.RELOAD, "Compute dtype",
        "Data type of weights, activations and, by default, KV cache. auto: BF16 if it is fast "
        "on this machine and the model exceeds the CPU cache, else FP32.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    load_format: str = _setting(
        str, "auto", Change.RELOAD, "Load format",
        "auto: load the checkpoint's safetensors. dummy: seeded random weights with the model's "
        "shapes, for speed tests without a download.",
        choices=("auto", "dummy"),
    )
    quantization: str = _setting(
        str, "auto", Change.RELOAD, "Quantization",
        "Weight format of linear layers. auto: as in the checkpoint; none: unquantized; INT8, "
        "INT4, NF4, FP8: quantized at load, without calibration. Other values name the format of a "
        "quantized checkpoint.",
        choices=(
            "auto", "none", "int8", "int4", "nf4", "fp8", "awq", "gptq", "compressed-tensors",
            "bitsandbytes",
        ),
    )
    quantization_group_size: int = _setting(
        int, 128, Change.RELOAD, "Group size",
        "Input channels per INT4 scale. Smaller groups: better quality, more memory.",
        minimum=32, maximum=256, unit="inputs",
    )
    quantization_head: str = _setting(
        str, "none", Change.RELOAD, "LM head",
        "Weight format of LM head and embeddings. none: unquantized; INT8: quantized at load. "
        "Saves most memory in small models.",
        choices=("none", "int8"),
    )
    max_model_len: int | None = _setting(
        int, None, Change.RELOAD, "Context length",
        "Maximum tokens per request (prompt + output). None: the model's limit; on a CPU, at most "
        "what fits in half of the free memory.",
        minimum=1, maximum=2**31 - 1, unit="tokens", optional=True,
    )
    num_threads: int | None = _setting(
        int, None, Change.RELOAD, "CPU threads",
        "Maximum threads for matrix multiplication. None: the number of physical cores.",
        minimum=1, maximum=1024, unit="threads", optional=True,
    )
    adaptive_threads: bool = _setting(
        bool, True, Change.LIVE, "Adaptive threads",
        "Choose the thread count per step: fewer for small steps, never more than the idle cores. "
        "Off: always use the CPU threads setting.",
    )
    enforce_eager: bool = _setting(
        bool, False, Change.CACHE_REBUILD, "Eager mode",
        "Launch every kernel separately. Off: decode-only steps are replayed, on NVIDIA GPUs as "
        "CUDA graphs, which use extra memory; on the CPU for up to 64 requests. There, steps with "
        "prompts are replayed too, for up to 2,048 tokens by processor and model.",
    )
    seed: int = _setting(
        int, 0, Change.RELOAD, "Seed", "Seed for random weights and for requests without a seed.",
        minimum=0, maximum=2**63 - 1,
    )
    max_num_seqs: int = _setting(
        int, 16, Change.LIVE, "Max running requests",
        "Maximum requests per step. Larger: more throughput, shorter TTFT under load, longer ITL.",
        minimum=1, maximum=1024, unit="requests",
    )
    max_num_batched_tokens: int | None = _setting(
        int, None, Change.LIVE, "Max batched tokens",
        "Maximum tokens per step. Larger: faster prefill. Smaller: steadier ITL. None: on a CPU, "
        "the largest step of 64 to 2,048 tokens that takes at most 400 ms, measured at load; on a "
        "GPU, 512.",
        minimum=1, maximum=131072, unit="tokens", optional=True,
    )
    batching: str = _setting(
        str, "continuous", Change.LIVE, "Batching",
        "continuous: admit requests at every step. static: finish a batch before the next one.",
        choices=("continuous", "static"),
    )
    enable_prefix_caching: bool = _setting(
        bool, True, Change.LIVE, "Prefix caching",
        "Reuse KV blocks of previously computed prompt prefixes.",
    )
    enable_chunked_prefill: bool = _setting(
        bool, True, Change.LIVE, "Chunked prefill",
        "Split long prompts across steps. Off: each prompt is prefilled in a single step, up to "
        "the context length.",
    )
    watermark: float = _setting(
        float, 0.05, Change.LIVE, "Watermark",
        "Fraction of KV blocks kept free when admitting requests, to avoid preemptions.",
        minimum=0.0, maximum=0.5,
    )
    num_speculative_tokens: int = _setting(
        int, 4, Change.LIVE, "Draft tokens",
        "Maximum draft tokens per request and step. 0: no drafting.",
        minimum=0, maximum=16, unit="tokens",
    )
    speculative_adaptive: bool = _setting(
        bool, True, Change.LIVE, "Adaptive drafting",
        "Choose the draft length from the measured acceptance rate and step cost; pause if there "
        "is no speed-up. Off: always draft the maximum.",
    )
    prompt_lookup_min: int = _setting(
        int, 2, Change.LIVE, "Min n-gram",
        "Minimum n-gram length for prompt lookup (ngram method).",
        minimum=1, maximum=16, unit="tokens",
    )
    prompt_lookup_max: int = _setting(
        int, 5, Change.LIVE, "Max n-gram",
        "Maximum n-gram length for prompt lookup (ngram method).",
        minimum=1, maximum=16, unit="tokens",
    )
    speculative_method: str = _setting(
        str, "off", Change.CACHE_REBUILD, "Speculative decoding",
        "Draft several tokens and verify them in one step of the model; output is unchanged. "
        "draft_model: a small model with the same vocabulary; ngram: repeated n-grams in the "
        "text; eagle3: an EAGLE-3 head trained for the model.",
        choices=("off", "draft_model", "ngram", "eagle3"),
    )
    speculative_model: str | None = _setting(
        str, None, Change.CACHE_REBUILD, "Draft model",
        "Draft model folder, or EAGLE-3 head folder for eagle3. None: no draft model.",
        optional=True,
    )
    block_size: int = _setting(
        int, 16, Change.CACHE_REBUILD, "Block size",
        "Tokens per KV block. Smaller: fewer unused slots. Larger: less overhead.",
        minimum=1, maximum=1024, unit="tokens",
    )
    kv_cache_dtype: str = _setting(
        str, "auto", Change.CACHE_REBUILD, "KV cache dtype",
        "KV cache dtype. auto: the compute dtype. FP8 (E4M3) and INT8: 8-bit, per-token scales; "
        "about 2× the tokens of 16-bit. For INT8 keys and FP8 values type k=int8,v=fp8.",
        choices=KV_DTYPES, check_other=check_kv_dtype, other="k=K,v=V",
    )
    kv_cache_memory_bytes: int | None = _setting(
        int, None, Change.CACHE_REBUILD, "KV cache size",
        "Memory for the KV cache. None: sized from free memory; on a CPU, at most half of it, or "
        "enough for one request of the context length that you set.",
        minimum=1, maximum=2**50, unit="bytes", optional=True,
    )
    gpu_memory_utilization: float = _setting(
        float, 0.9, Change.CACHE_REBUILD, "Memory utilization",
        "Maximum fraction of device memory (RAM on CPU) for the engine. Capped at free memory "
        "minus a reserve for the desktop.",
        minimum=0.05, maximum=1.0,
    )
    kv_allocation: str = _setting(
        str, "paged", Change.CACHE_REBUILD, "KV allocation",
        "paged: allocate KV blocks on demand. contiguous: reserve the maximum length at admission, "
        "as before PagedAttention (for comparison).",
        choices=("paged", "contiguous"),
    )

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            setting.check(getattr(self, setting.name))

    @property
    def step_token_limit(self) -> int:
        """Maximum tokens of one step. Without chunking a whole context has to fit beside one
        token of every other request (needs max_model_len resolved)."""
        if self.enable_chunked_prefill:
            return self.token_budget
        return max(self.token_budget, (self.max_model_len or 0) + self.max_num_seqs)

    @property
    def token_budget(self) -> int:
        """`max_num_batched_tokens`, or the most that may be chosen while it is not measured."""
        return self.max_num_batched_tokens or LARGEST_BUDGET

    @property
    def kv_dtype(self) -> KVDtype:
        """Number formats of the KV caches of the model and of its draft model."""
        return parse_kv_dtype(self.kv_cache_dtype)

    @property
    def most_drafts(self) -> int:
        """Maximum draft tokens per request and step."""
        return 0 if self.speculative_method == "off" else self.num_speculative_tokens

    @property
    def drafts_with_weights(self) -> bool:
        """Whether drafting needs weights and a KV cache of its own."""
        return self.speculative_method in ("draft_model", "eagle3")

    @property
    def drafts_from_hidden_states(self) -> bool:
        """Whether drafts are made from the hidden states of the model's steps. Those of earlier
        steps, and of tokens that prefix caching skips, are not available."""
        return self.speculative_method == "eagle3" and self.num_speculative_tokens > 0

    def replace(self, **changes: Any) -> EngineConfig:
        """A copy with `changes`. Raises ConfigError for an unknown name or an invalid value."""
        unknown = sorted(set(changes) - set(SETTINGS))
        if unknown:
            raise ConfigError(
                f"Unknown setting: {', '.join(unknown)}.", f"Available: {', '.join(SETTINGS)}."
            )
        return dataclasses.replace(self, **changes)

    def change_class(self, other: EngineConfig) -> Change | None:
        """The costliest class among the settings that differ from `other`; None if none do."""
        changed = self.differences(other)
        return costliest(changed) if changed else None

    def differences(self, other: EngineConfig) -> dict[str, tuple[Any, Any]]:
        """Setting name -> (value here, value in `other`) where they differ."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in SETTINGS
            if getattr(self, name) != getattr(other, name)
        }

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


SETTINGS: dict[str, Setting] = {
    f.name: Setting(name=f.name, default=f.default, **f.metadata)
    for f in dataclasses.fields(EngineConfig)
}
"""Every engine setting by name, in reading order."""


def costliest(names: Iterable[str]) -> Change:
    """The costliest class among these settings; LIVE for none."""
    order = list(Change)
    return max((SETTINGS[name].change for name in names), key=order.index, default=Change.LIVE)


def differences_text(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """ "Block size 16 → 32", of `EngineConfig.differences`."""
    return ", ".join(
        f"{SETTINGS[name].label} {setting_text(before)} → {setting_text(now)}"
        for name, (before, now) in differences.items()
    )
