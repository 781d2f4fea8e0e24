"""Snapshots of the engine: immutable records, made at most once per step.

Widgets import this package and nothing else of the engine. It imports no torch.
Times are seconds of `time.perf_counter()`, the clock of the process; sizes are bytes; fractions
are 0 to 1.
"""

# ruff: noqa: F401 - names for other rooms

from engine.snapshot.engine import (
    Counters,
    EngineSnapshot,
    ModelInfo,
    Part,
    ReportedLoad,
    Sample,
    SpeculationSnapshot,
    SpeedUp,
    ThreadFigures,
    ThreadsOf,
    TokenBudget,
)
from engine.snapshot.memory import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockDetails,
    BlockSnapshot,
    GpuFigures,
    GpuProcess,
    MemoryPlan,
    MemorySnapshot,
    undivided,
)
from engine.snapshot.requests import (
    BACKGROUND,
    Arrival,
    FinishReason,
    LastBlocks,
    PackedTokens,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    TokenEvent,
)
from engine.snapshot.steps import PackedEntries, StepEntry, StepRecord, entry_of, packed, unpacked
