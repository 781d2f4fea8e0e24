"""What a ladder runs on: an engine whose settings may change, and its quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from app.bench.load import Pace, Run
from app.bench.rungs import Quality
from app.bench.runner import BenchRunner, SettableEngine
from app.bench.sweep import Bench
from engine.config import EngineConfig
from engine.units import counted

SMALL_CACHE = 64  # blocks that are left while another model is loaded beside this one


class LadderBench(Bench, Protocol):
    def apply(self, settings: Mapping[str, Any]) -> None: ...
    def quality(
        self, reference: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Quality | None:
        """None where it has no meaning: random weights."""


MeasureQuality = Callable[[EngineConfig, EngineConfig], Quality | None]


class EngineLadder:
    """A `LadderBench` of an engine. `measure_quality(candidate, reference)` loads both."""

    def __init__(
        self, engine: SettableEngine, runner: BenchRunner, measure_quality: MeasureQuality
    ) -> None:
        self._engine, self._measure_quality = engine, measure_quality
        self.measure, self.apply = runner.measure, runner.reconfigure

    def quality(
        self, reference: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Quality | None:
        engine = self._engine
        if engine.model_info.is_dummy:
            return None
        config = engine.config.replace(kv_cache_memory_bytes=None)
        before = engine.config.kv_cache_memory_bytes
        small = SMALL_CACHE * engine.plan.block_bytes_in_all
        self.apply({"kv_cache_memory_bytes": small})
        try:
            return self._measure_quality(config.replace(**settings), config.replace(**reference))
        finally:
            self.apply({"kv_cache_memory_bytes": before})


class AtRung(NamedTuple):
    """Adds the settings of a rung, and a batch limit of all users: they run at once as far as the
    KV cache has room. `tell` hears of each run."""

    bench: LadderBench
    settings: Mapping[str, Any]
    tell: Callable[[str], None]

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:  # fmt: skip
        assert pace.concurrency is not None
        self.tell(counted(pace.concurrency, "user"))
        changes = {**self.settings, "max_num_seqs": pace.concurrency}
        return self.bench.measure(changes, pace, least, label, limit_s)
