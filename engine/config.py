"""The engine's configuration, and one registry of its settings.

Every setting is declared once: name, default, bounds, what changing it costs (`Change`), and its
help. The command line, the settings panel and the documentation are made from this registry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.errors import ConfigError
from engine.hardware.device_map import AUTO, check_gpu_layers
from engine.hardware.device_map import CHOICES as GPU_LAYERS
from engine.hardware.devices import CHOICES as DEVICES
from engine.hardware.devices import check_device, is_cuda, rank_devices
from engine.numerics.kv_dtype import NAMES as KV_DTYPES
from engine.numerics.kv_dtype import KVDtype, check_kv_dtype, parse_kv_dtype


class Change(StrEnum):
    """What it takes to apply a changed setting."""

    LIVE = "live"  # from the next step
    CACHE_REBUILD = "cache rebuild"  # running requests are preempted and resume
    RELOAD = "reload"  # the model is loaded again


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared engine setting. `minimum`/`maximum` are inclusive; None means unbounded.
    `check_other`: raises ConfigError for what is none of the choices and is not allowed either;
    None: nothing else is. `other`: how what else is allowed is written."""

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
            self._check_choice(value)
            return
        accepted: tuple[type, ...] = (int, float) if self.type is float else (self.type,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.type is not bool):
            raise ConfigError(f"{self.name} is {value!r}.", f"Give a {self.type.__name__}.")
        if isinstance(value, (int, float)):
            # `not (a <= b)` also refuses NaN
            if self.minimum is not None and not value >= self.minimum:
                raise ConfigError(
                    f"{self.name} is {value}.", f"Give at least {self.minimum:g}{self._unit}."
                )
            if self.maximum is not None and not value <= self.maximum:
                raise ConfigError(
                    f"{self.name} is {value}.", f"Give at most {self.maximum:g}{self._unit}."
                )

    def _check_choice(self, value: Any) -> None:
        if value in self.choices:
            return
        if self.check_other is None:
            raise ConfigError(
                f"{self.name} is {value!r}.", f"Choose one of {', '.join(self.choices)}."
            )
        self.check_other(value)

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""


def _setting(type_: type, default: Any, change: Change, label: str, help_: str, **kw: Any) -> Any:
    return dataclasses.field(
        default=default,
        metadata={"type": type_, "change": change, "label": label, "help": help_, **kw},
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides how the engine runs. Immutable: see `replace` and `change_class`."""

    model: str = _setting(
        str, "", Change.RELOAD, "Model", "Folder of a Hugging Face checkpoint."
    )
    device: str = _setting(
        str, "auto", Change.RELOAD, "Device",
        "Where the model runs. auto: the first NVIDIA GPU that can be used, else the CPU; cuda:0, "
        "cuda:1 and so on name one.",
        choices=DEVICES, check_other=check_device, other="cuda:N",
    )
    gpu_layers: str = _setting(
        str, AUTO, Change.RELOAD, "GPU layers",
        "How many of the model's layers an NVIDIA GPU computes. The CPU computes those before "
        "them, and their part of the KV cache is in RAM. auto: all, or as many as fit where the "
        "memory of the GPU does not suffice for all.",
        choices=GPU_LAYERS, check_other=check_gpu_layers, other="N",
    )
    tensor_parallel_size: int = _setting(
        int, 1, Change.RELOAD, "Tensor parallel size",
        "How many ranks compute each layer together: its heads, the inner width of its MLP and the "
        "vocabulary are divided among them. On NVIDIA GPUs that many, from the chosen one on; on "
        "the CPU that many groups of threads, each on a NUMA node of its own where there are as "
        "many.",
        minimum=1, maximum=8, unit="ranks",
    )
    pipeline_parallel_size: int = _setting(
        int, 1, Change.RELOAD, "Pipeline parallel size",
        "On how many NVIDIA GPUs, from the chosen one on, the layers of the model are, as many on "
        "each. One computes behind the other, and long prompts in pieces, so that all compute at "
        "once.",
        minimum=1, maximum=8, unit="stages",
    )
    dtype: str = _setting(
        str, "auto", Change.RELOAD, "Number format",
        "Of weights, activations and, unless it has its own, KV cache. auto: bfloat16 where this "
        "machine computes it fast and the model is larger than its cache, else float32.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    load_format: str = _setting(
        str, "auto", Change.RELOAD, "Load format",
        "auto reads the checkpoint's safetensors; dummy fills the model's shape with seeded "
        "random weights, to measure speed without a download.",
        choices=("auto", "dummy"),
    )
    quantization: str = _setting(
        str, "auto", Change.RELOAD, "Weights",
        "How the weights of linear layers are held. auto: as the checkpoint stores them; none: "
        "as plain numbers; int8, int4, nf4, fp8: rounded while they are loaded, without "
        "calibration. The others name the format of a quantized checkpoint.",
        choices=(
            "auto", "none", "int8", "int4", "nf4", "fp8", "awq", "gptq", "compressed-tensors",
            "bitsandbytes",
        ),
    )
    quantization_group_size: int = _setting(
        int, 128, Change.RELOAD, "Group size",
        "Of int4: inputs that share a scale. Small groups lose less and take more memory.",
        minimum=32, maximum=256, unit="inputs",
    )
    quantization_head: str = _setting(
        str, "none", Change.RELOAD, "Output head",
        "Output head and embeddings. none: plain numbers; int8: rounded while they are loaded, "
        "which in small models saves most of the bytes.",
        choices=("none", "int8"),
    )
    max_model_len: int | None = _setting(
        int, None, Change.RELOAD, "Context length",
        "Most tokens of one request, prompt and reply. None: the model's own limit.",
        minimum=1, unit="tokens", optional=True,
    )
    num_threads: int | None = _setting(
        int, None, Change.RELOAD, "CPU threads",
        "Most threads of the matrix products. None: the physical cores.",
        minimum=1, maximum=1024, optional=True,
    )
    adaptive_threads: bool = _setting(
        bool, True, Change.LIVE, "Adaptive threads",
        "On the CPU, compute steps of few tokens with fewer threads where these are measured to "
        "be as fast, and all steps with no more than other programs leave cores for. Off: always "
        "the number above.",
    )
    enforce_eager: bool = _setting(
        bool, False, Change.CACHE_REBUILD, "Eager steps",
        "Launch every kernel of a step by itself. Off: on an NVIDIA GPU, steps in which everybody "
        "decodes are captured once as CUDA graphs and replayed, which takes some memory.",
    )
    seed: int = _setting(
        int, 0, Change.RELOAD, "Seed", "Of dummy weights and of requests without a seed.",
        minimum=0, maximum=2**63 - 1,
    )
    max_num_seqs: int = _setting(
        int, 16, Change.LIVE, "Running requests", "Most requests that share one step.",
        minimum=1, maximum=1024, unit="requests",
    )
    max_num_batched_tokens: int = _setting(
        int, 512, Change.LIVE, "Token budget per step",
        "Most tokens computed in one step: larger prefills faster, smaller keeps ITL even.",
        minimum=1, maximum=131072, unit="tokens",
    )
    batching: str = _setting(
        str, "continuous", Change.LIVE, "Batching",
        "continuous fills a free place at the next step; static runs a batch to its last request "
        "before the next one starts.",
        choices=("continuous", "static"),
    )
    enable_prefix_caching: bool = _setting(
        bool, True, Change.LIVE, "Prefix caching",
        "Reuse the KV blocks of a prompt's beginning that was computed before.",
    )
    enable_chunked_prefill: bool = _setting(
        bool, True, Change.LIVE, "Chunked prefill",
        "Split long prompts over steps. Off: a prompt is computed in one step, and the token "
        "budget of a step grows to the context length.",
    )
    watermark: float = _setting(
        float, 0.05, Change.LIVE, "Watermark",
        "Fraction of the blocks kept free when a request is admitted: prevents preemption thrash.",
        minimum=0.0, maximum=0.5,
    )
    num_speculative_tokens: int = _setting(
        int, 4, Change.LIVE, "Drafted tokens",
        "Most tokens that are drafted for a request and verified in one step. 0 switches drafting "
        "off.",
        minimum=0, maximum=16, unit="tokens",
    )
    speculative_adaptive: bool = _setting(
        bool, True, Change.LIVE, "Adaptive drafts",
        "Draft as many tokens as pay, from the measured acceptance of each request and the "
        "measured cost of a step; none where drafting is slower. Off: always the number above.",
    )
    prompt_lookup_min: int = _setting(
        int, 2, Change.LIVE, "Shortest n-gram",
        "Of the method ngram: fewest tokens at the end of the text that must have occurred before.",
        minimum=1, maximum=16, unit="tokens",
    )
    prompt_lookup_max: int = _setting(
        int, 5, Change.LIVE, "Longest n-gram",
        "Of the method ngram: most tokens that are looked for.",
        minimum=1, maximum=16, unit="tokens",
    )
    speculative_method: str = _setting(
        str, "off", Change.CACHE_REBUILD, "Speculative decoding",
        "Something cheap drafts tokens, the model verifies them in one step: the same text in "
        "fewer steps. draft_model: a small model of the same vocabulary drafts; ngram: what "
        "followed the last time that the text ended like this; eagle3: an EAGLE-3 head that was "
        "trained for the model drafts from its hidden states.",
        choices=("off", "draft_model", "ngram", "eagle3"),
    )
    speculative_model: str | None = _setting(
        str, None, Change.CACHE_REBUILD, "Draft model",
        "Folder of what drafts: a small model for the method draft_model, the head for eagle3. "
        "None: no draft model.",
        optional=True,
    )
    block_size: int = _setting(
        int, 16, Change.CACHE_REBUILD, "Block size",
        "Tokens per KV block: small loses less to partly filled blocks, large costs less "
        "bookkeeping.",
        minimum=1, maximum=1024, unit="tokens",
    )
    kv_cache_dtype: str = _setting(
        str, "auto", Change.CACHE_REBUILD, "KV precision",
        "What keys and values are stored in. auto: the model's precision; fp8 (e4m3) and int8: 8 "
        "bits and a scale for each token and head, so that the cache holds about twice the "
        "tokens. Each may have its own: k=int8,v=fp8.",
        choices=KV_DTYPES, check_other=check_kv_dtype, other="k=K,v=V",
    )
    kv_cache_memory_bytes: int | None = _setting(
        int, None, Change.CACHE_REBUILD, "Cache size",
        "Bytes of the KV cache. None: planned from the memory that is free.",
        minimum=1, unit="bytes", optional=True,
    )
    gpu_memory_utilization: float = _setting(
        float, 0.9, Change.CACHE_REBUILD, "Memory utilization",
        "Fraction of the device's memory (RAM for cpu) that the engine may plan with, capped by "
        "what is free less a reserve for the desktop.",
        minimum=0.05, maximum=1.0,
    )
    kv_allocation: str = _setting(
        str, "paged", Change.CACHE_REBUILD, "KV allocation",
        "paged takes blocks as tokens come; contiguous reserves each request's longest possible "
        "length at admission, as engines did before paging (for comparison).",
        choices=("paged", "contiguous"),
    )

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            setting.check(getattr(self, setting.name))

    @property
    def step_token_limit(self) -> int:
        """Most tokens of one step. Without chunking a whole context has to fit beside one token
        of every other request (needs max_model_len resolved)."""
        if self.enable_chunked_prefill:
            return self.max_num_batched_tokens
        return max(self.max_num_batched_tokens, (self.max_model_len or 0) + self.max_num_seqs)

    @property
    def devices(self) -> tuple[str, ...]:
        """Of ranks or stages, where `device` (resolved) is the first of several GPUs; else that
        one alone."""
        if not is_cuda(self.device):
            return (self.device,)
        most = max(self.tensor_parallel_size, self.pipeline_parallel_size)
        return rank_devices(self.device, most)

    @property
    def kv_dtype(self) -> KVDtype:
        """What the caches of the model and of its draft store."""
        return parse_kv_dtype(self.kv_cache_dtype)

    @property
    def most_drafts(self) -> int:
        """That a request may have in a step."""
        return 0 if self.speculative_method == "off" else self.num_speculative_tokens

    @property
    def drafts_with_weights(self) -> bool:
        """Whether what drafts has weights and a cache of its own."""
        return self.speculative_method in ("draft_model", "eagle3")

    @property
    def drafts_from_hidden_states(self) -> bool:
        """Whether drafts are made from what the model computes in its steps: what it computed
        before, and what prefix caching skips, is not to be had."""
        return self.speculative_method == "eagle3" and self.num_speculative_tokens > 0

    def replace(self, **changes: Any) -> EngineConfig:
        """A copy with `changes`; raises ConfigError for an unknown name or a value not allowed."""
        unknown = sorted(set(changes) - set(SETTINGS))
        if unknown:
            raise ConfigError(
                f"Unknown setting: {', '.join(unknown)}.", f"Known: {', '.join(SETTINGS)}."
            )
        return dataclasses.replace(self, **changes)

    def change_class(self, other: EngineConfig) -> Change | None:
        """The costliest class among the settings that differ from `other`; None if none do."""
        order = list(Change)
        changed = [SETTINGS[name].change for name in self.differences(other)]
        return max(changed, key=order.index) if changed else None

    def differences(self, other: EngineConfig) -> dict[str, tuple[Any, Any]]:
        """Setting name -> (value here, value in `other`) where they differ."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in SETTINGS
            if getattr(self, name) != getattr(other, name)
        }

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        return cls().replace(**values)


def _declared() -> dict[str, Setting]:
    return {
        f.name: Setting(name=f.name, default=f.default, **f.metadata)
        for f in dataclasses.fields(EngineConfig)
    }


SETTINGS: dict[str, Setting] = _declared()
"""Every engine setting by name, in the order in which a person would read them."""
