"""Plan, counters and limits of a background load. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.bench.load import Pace
from app.bench.workload import Workload
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.units import rate_text


class LoadState(StrEnum):
    IDLE = "idle"
    PREPARING = "preparing"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Workload, pace and seed of a load. `is_lesson`: a lesson started it, not the load bar."""

    workload: Workload
    variant: str
    pace: Pace
    seed: int = 0
    is_lesson: bool = False

    @property
    def words(self) -> str:
        return f"{self.workload.title}, {self.pace}"

    @property
    def in_short(self) -> str:
        """Text of a mark: "load 8 concurrent", "load 2.5 req/s"."""
        rate = self.pace.request_rate
        return f"load {self.pace}" if rate is None else f"load {rate_text(rate, 'req/s')}"


@dataclass(slots=True)
class LoadCounts:
    """Counts of the current or last run. `dropped`: arrivals while the queue was full."""

    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    aborted: int = 0
    dropped: int = 0


def tokens_asked(config: EngineConfig | None, output_len: int, max_tokens: int) -> int:
    """The max_tokens that a request asks for, of which `output_len` are generated. Usually they are
    equal; with contiguous allocation, which reserves memory for max_tokens, it asks for all that it
    is allowed and is aborted early."""
    reserves = config is not None and config.kv_allocation == "contiguous"
    return max(output_len, max_tokens) if reserves else output_len


def why_not(work: Workload, config: EngineConfig, capacity: int | None) -> ErrorInfo | None:
    """Why the longest request of the workload cannot be served, or None. `config` has its context
    resolved; `capacity`: tokens of the KV cache. Limits that a remote engine does not report are
    not checked here."""
    longest = work.input.high + tokens_asked(config, work.output.high, work.max_tokens or 0)
    context = config.max_model_len
    if context is not None and longest > context:
        return ErrorInfo(
            f"{work.title} needs a context of {longest:,} tokens; the limit is {context:,}.",
            "Choose another workload, or a model with a longer context.",
        )
    if capacity is not None and longest > capacity:
        return ErrorInfo(
            f"{work.title} needs {longest:,} tokens per request; the KV cache fits {capacity:,}.",
            "Increase the KV cache size, or choose another workload.",
        )
    return None
