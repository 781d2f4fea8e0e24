"""The rungs of a ladder: the engine's techniques, one added after the other. No Qt, no torch.

    naive        static batching, contiguous KV, no prefix cache, weights as in the checkpoint
    continuous   requests join and leave the batch at every step
    paged        KV blocks on demand
    prefix       shared prefixes from the cache
    weights      quantized
    kv           quantized KV cache
    drafts       speculative decoding
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from app.bench.sweep import Point
from app.bench.tuner import noise_of
from engine.config import EngineConfig
from engine.snapshot import MemoryPlan, ModelInfo
from engine.telemetry.step_cost import Split
from engine.units import bytes_text, precision_name, speculative_name

AT_LOAD = ("int8", "int4", "nf4", "fp8")
"""Weight formats that need no calibration."""
NAIVE: Mapping[str, Any] = {
    "batching": "static", "kv_allocation": "contiguous", "enable_prefix_caching": False,
    "quantization": "auto", "quantization_head": "none", "kv_cache_dtype": "auto",
    "speculative_method": "off",
}  # fmt: skip
PRECISIONS = ("quantization", "kv_cache_dtype")
"""Settings that may lose quality."""


CLEAR = 0.05
"""Relative difference of two rungs that is more than noise, before repeated runs show theirs."""
_WITHIN = 2 * math.sqrt(2)
"""Standard deviations of a run within which 95 % of the differences of two runs are."""


class State(StrEnum):
    WAITING = "waiting"
    MEASURED = "measured"
    SKIPPED = "skipped"  # the model cannot take it
    FAILED = "failed"


class Quality(NamedTuple):
    """Against the first rung, over `num_tokens` of a text. `perplexity_change`: relative; `kl`:
    mean, in nats."""

    perplexity_change: float
    kl: float
    top1_agreement: float
    num_tokens: int


@dataclass(slots=True)
class Rung:
    """`changes`: what it adds; `settings`: all in force. `best`: its largest measured load under
    the goals, else the nearest one; `same`: at the load of `best` of the rung below that it stands
    on. `room`: requests that the KV cache had room for, where these were not all. `reason`: why it
    is skipped, has failed or is not kept; `doubt`: why its gain did not show again; `missed`: that
    more runs with its users missed the goals; `note`: more on it. `rates`: output tokens per second
    of each run at `best`, and at `same`."""

    key: str
    title: str
    changes: dict[str, Any]
    state: State = State.WAITING
    reason: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    users: int = 0
    best: Point | None = None
    same: Point | None = None
    split: Split | None = None
    room: int | None = None
    below: str = ""
    quality: Quality | None = None
    note: str = ""
    doubt: str = ""
    missed: str = ""
    is_kept: bool = False
    rates: list[list[float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Output tokens per second at `best`."""
        return 0.0 if self.best is None else self.best.figures["output_tokens_per_s"] or 0.0


def clear_of(rungs: Sequence[Rung]) -> float:
    """Relative difference of two rungs that is more than noise, from the spread of repeated
    runs."""
    return _WITHIN * noise_of((some for rung in rungs for some in rung.rates), CLEAR / _WITHIN)


class Choices(NamedTuple):
    """The user's: precisions of weights and KV cache, and settings of speculative decoding."""

    weights: str = "int8"
    kv: str = "int8"
    drafts: Mapping[str, Any] = {"speculative_method": "ngram"}

    @classmethod
    def of(cls, config: EngineConfig) -> Choices:
        """As `config` has them, else the usual ones."""
        made = cls()
        if config.quantization in AT_LOAD:
            made = made._replace(weights=config.quantization)
        if config.kv_cache_dtype != "auto":
            made = made._replace(kv=config.kv_cache_dtype)
        if config.speculative_method != "off":
            names = ("speculative_method", "speculative_model")
            made = made._replace(drafts={name: getattr(config, name) for name in names})
        return made


def first_rung_problem(config: EngineConfig, model: ModelInfo, plan: MemoryPlan) -> str:
    """Why the first rung does not fit in memory: it loads weights unquantized that `config` has
    quantized while loading. "" if it does."""
    if config.quantization not in AT_LOAD:
        return ""
    size = model.num_parameters * (4 if model.dtype == "float32" else 2)
    room = plan.limit + plan.host_limit - plan.activations - plan.host_activations
    if size <= room:
        return ""
    return (
        f"The first rungs need the weights unquantized: {bytes_text(size)}; {bytes_text(room)} is "
        "available. They will fail."
    )


def rungs_of(config: EngineConfig, model: ModelInfo, choices: Choices) -> list[Rung]:
    """The rungs for a loaded model; those that it cannot take are skipped already."""
    method = speculative_name(choices.drafts["speculative_method"])
    found = [
        Rung("naive", "Naive", dict(NAIVE)),
        Rung("continuous", "Continuous batching", {"batching": "continuous"}),
        Rung("paged", "Paged KV cache", {"kv_allocation": "paged"}),
        Rung("prefix", "Prefix cache", {"enable_prefix_caching": True}),
        Rung("weights", f"{precision_name(choices.weights)} weights",
             {"quantization": choices.weights}),
        Rung("kv", f"{precision_name(choices.kv)} KV cache", {"kv_cache_dtype": choices.kv}),
        Rung("drafts", f"Speculation ({method})", dict(choices.drafts)),
    ]  # fmt: skip
    if model.quantization and config.quantization not in AT_LOAD:
        weights = found[4]
        weights.state = State.SKIPPED
        weights.reason = f"The checkpoint is quantized already ({model.quantization})."
    return found


def settings_of(rungs: Sequence[Rung]) -> list[str]:
    """Names of the settings that a ladder changes."""
    others = ("max_num_seqs", "kv_cache_memory_bytes")
    return list(dict.fromkeys([*(name for rung in rungs for name in rung.changes), *others]))
