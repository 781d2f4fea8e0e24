"""A ladder's engine whose step times are known: every figure can be worked out by hand.

    step    2 ms + weights at 100 kB/s (800 bytes, INT8 400) + KV at 100 kB/s (100 bytes a user,
            INT8 50)
    TTFT    20 ms + 10 ms a user (a quarter of it from the prefix cache), static another 10 ms,
            contiguous another 300 ms beyond 6 users
    reply   10 tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from app.bench.goals import Goals
from app.bench.ladder import Ladder
from app.bench.ladder_record import LadderResult
from app.bench.load import EngineRun, Pace
from app.bench.rungs import Choices, Quality, Rung, rungs_of
from app.bench.users import USERS
from engine.config import EngineConfig
from engine.errors import OutOfMemoryError
from engine.hardware.peaks import Peaks
from engine.snapshot import RequestTimes, StepEntry, StepRecord, TokenEvent
from engine.telemetry.step_cost import ModelCost
from tests.app.fake_engine import MODEL

TOKENS = 10
GOALS = Goals(ttft=170.0, itl=26.5, percentile=50)
MEASURED = ["naive", "continuous", "paged", "prefix", "weights", "kv", "drafts"]
PEAKS = Peaks(1e5, 1e15, "float32", 1, "test", 0.0)
QUALITY = Quality(0.002, 1e-4, 0.998, 500)


def gap_of(settings: Mapping[str, Any], users: int) -> float:
    """Seconds."""
    weights = 4 if settings["quantization"] == "int8" else 8
    own = 0.5 if settings["kv_cache_dtype"] == "int8" else 1.0
    slow = 1.3 if settings["speculative_method"] == "ngram" else 1.0
    return 1e-3 * slow * (2 + weights + own * users)


def first_of(settings: Mapping[str, Any], users: int) -> float:
    """Seconds."""
    each = 10 * (0.25 if settings["enable_prefix_caching"] else 1.0)
    each += 10 if settings["batching"] == "static" else 0
    is_full = settings["kv_allocation"] == "contiguous" and users > 6
    return 1e-3 * (20 + each * users + 300 * is_full)


def users_of(settings: Mapping[str, Any], goals: Goals = GOALS) -> int:
    """Found by trying all."""
    met = [users for users in USERS if 1e3 * gap_of(settings, users) <= (goals.itl or math.inf)
           and 1e3 * first_of(settings, users) <= (goals.ttft or math.inf)]  # fmt: skip
    return max(met, default=0)


def rate_of(settings: Mapping[str, Any], users: int) -> float:
    """Output tokens per second."""
    whole = first_of(settings, users) + (TOKENS - 1) * gap_of(settings, users)
    return users * TOKENS / whole


class ScriptedLadder:
    """`refuse(settings)` raises for what cannot be applied; `disturb(number)`: by how much slower
    the run with this number is."""

    def __init__(self) -> None:
        self.refuse: Callable[[Mapping[str, Any]], None] = lambda settings: None
        self.disturb: Callable[[int], float] = lambda number: 1.0
        self.lost: Quality | None = QUALITY
        self.applied: Mapping[str, Any] = {}
        self.now: tuple[dict[str, Any], int] = ({}, 0)  # the run that begins
        self.seen: list[tuple[dict[str, Any], int]] = []
        self.compared: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def apply(self, settings: Mapping[str, Any]) -> None:
        self.refuse(settings)
        self.applied = settings

    def quality(
        self, reference: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Quality | None:
        self.compared.append((dict(reference), dict(settings)))
        return self.lost

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> EngineRun:  # fmt: skip
        users = pace.concurrency or 1
        self.now = dict(settings), users
        slow = self.disturb(len(self.seen))
        self.seen.append((dict(settings), users))
        if users > 200:
            raise OutOfMemoryError("Out of memory.")
        first, gap = slow * first_of(settings, users), slow * gap_of(settings, users)
        weights = 400 if settings["quantization"] == "int8" else 800
        run = EngineRun(weights_bytes=weights, kv_cache_bytes=10_000)
        kv = 50 if settings["kv_cache_dtype"] == "int8" else 100
        run.cost = ModelCost(weights, 0, 0, 0, 0, 0, 0, 0, 0, kv)
        for number in range(least):
            start = (number // users) * (first + (TOKENS - 1) * gap)
            events = tuple(TokenEvent(start + first + gap * i, 1) for i in range(TOKENS))
            run.requests.append(RequestTimes(start, start, events, events[-1].time))
        run.end(0.0)
        seen = run.observed
        batch = max(1, users // 2) if settings["batching"] == "static" else users
        entries = tuple(StepEntry(f"{n}", "decode", 1) for n in range(batch))
        seen.steps = [StepRecord(0, 0.0, gap, entries, batch, 0, model_s=gap)]
        seen.peak_kv_usage = users / 1000
        is_contiguous = settings["kv_allocation"] == "contiguous"
        seen.max_concurrent_requests = min(users, 6) if is_contiguous else users
        seen.prefix_queries, seen.prefix_hits = 100, 0
        if settings["speculative_method"] == "ngram":
            seen.draft_rounds, seen.drafted, seen.accepted = 10, 40, 10
        return run


def climb(bench: ScriptedLadder | None = None, **more: Any) -> Ladder:
    """A finished one."""
    config = EngineConfig(model="m")
    ladder = Ladder(
        bench or ScriptedLadder(), rungs_of(config, MODEL, Choices.of(config)),
        **{"goals": GOALS, "num_requests": 4, "peaks": PEAKS, **more},
    )  # fmt: skip
    ladder.run()
    return ladder


def by_key(ladder: Ladder) -> dict[str, Rung]:
    return {rung.key: rung for rung in ladder.rungs}


def result_of(ladder: Ladder, **more: Any) -> LadderResult:
    rungs = tuple(ladder.rungs)
    return LadderResult(
        "tiny", "BF16", "Chat", rungs, ladder.goals, 1.8,
        **{"created": "2026-01-02T03:04:05+00:00", **more},
    )  # fmt: skip
