"""The whole engine after a step, and which parts of that its source does not tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from engine.snapshot.blocks import BlockSnapshot
from engine.snapshot.memory import GpuFigures, MemorySnapshot
from engine.snapshot.model import ModelInfo
from engine.snapshot.requests import RequestSnapshot, RequestState
from engine.snapshot.speculation import SpeculationSnapshot
from engine.snapshot.steps import StepRecord
from engine.snapshot.threads import ThreadFigures


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals since the engine was started."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    evictions: int = 0
    finished: dict[str, int] = field(default_factory=dict)

    @property
    def prefix_hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


class Part(StrEnum):
    """A part of a snapshot that not every source tells: an engine of ours tells all of them, a
    server of another make what its metrics have."""

    MODEL = "facts of the model"
    SETTINGS = "settings"
    REQUESTS = "requests of other clients"
    QUEUE = "requests running and waiting"
    BLOCKS = "KV blocks"
    KV_USAGE = "KV usage"
    STEPS = "steps"
    MEMORY = "memory"
    TOKENS = "tokens of all clients"
    PREFIX_CACHE = "prefix cache"
    PREEMPTIONS = "preemptions"
    SPECULATION = "drafts"


@dataclass(frozen=True, slots=True)
class Told:
    """Gauges of a server that does not show what they are counted from. None: not told either."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None


class Sample(NamedTuple):
    """One latency sample: when it was taken, and its value in seconds."""

    time: float
    value: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine after a step. `steps`, `ttft` and `itl` hold what is new since the snapshot
    published before this one; everything else is the state now. `missing`: what its source does not
    tell; there the values are empty and mean nothing. `told`: gauges in place of the parts that
    they would be counted from. `gpus`: those of the engine's machine, while it computes on one.
    `threads`: of its steps, while it computes on the CPU; None where nobody tells."""

    time: float
    step_index: int
    config: Any  # EngineConfig; Any keeps widgets free of engine.config
    model: ModelInfo
    requests: tuple[RequestSnapshot, ...]
    blocks: BlockSnapshot
    memory: MemorySnapshot
    counters: Counters
    steps: tuple[StepRecord, ...] = ()
    ttft: tuple[Sample, ...] = ()
    itl: tuple[Sample, ...] = ()
    speculation: SpeculationSnapshot | None = None
    missing: frozenset[Part] = frozenset()
    told: Told | None = None
    gpus: tuple[GpuFigures, ...] = ()
    threads: ThreadFigures | None = None

    @property
    def num_running(self) -> int:
        if self.told is not None and self.told.num_running is not None:
            return self.told.num_running
        return sum(r.state is RequestState.RUNNING for r in self.requests)

    @property
    def num_waiting(self) -> int:
        if self.told is not None and self.told.num_waiting is not None:
            return self.told.num_waiting
        return sum(r.state in (RequestState.WAITING, RequestState.PREEMPTED) for r in self.requests)

    @property
    def kv_usage(self) -> float:
        if self.told is not None and self.told.kv_usage is not None:
            return self.told.kv_usage
        return self.blocks.num_used / self.blocks.num_blocks if self.blocks.num_blocks else 0.0
