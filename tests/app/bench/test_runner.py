"""What a runner does before it measures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.bench.ladder_bench import EngineLadder
from app.bench.load import Clock, Pace, run_load
from app.bench.runner import BenchRunner, Plan, warm_batches
from engine.simulate.engine import SimulatedEngine
from tests.app.bench.test_predict import KNOWN, WORKLOAD, like


@pytest.fixture
def engine() -> SimulatedEngine:
    return SimulatedEngine(like(), KNOWN)


def batches(steps: Any) -> Counter[int]:
    """How often each number of requests decoded alone."""
    decodes = (step for step in steps if all(entry.num_tokens == 1 for entry in step.entries))
    return Counter(len(step.entries) for step in decodes)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_warm_up_has_each_batch_size_twice(engine: SimulatedEngine, most: int) -> None:
    run = run_load(engine, warm_batches(most, list(range(20))), Pace(), clock=Clock.of(engine))
    found = batches(run.observed.steps)
    assert set(found) == set(range(1, most + 1)) and min(found.values()) >= 2


def test_batches_are_warmed_once_for_a_cache(engine: SimulatedEngine) -> None:
    clock = Clock.of(engine)
    runner = BenchRunner(engine, Plan(WORKLOAD, Pace(6)), bandwidth=False, clock=clock)
    told: list[tuple[str, int, int]] = []
    runner.progress = lambda *counts: told.append(counts)

    ladder = EngineLadder(engine, runner, lambda candidate, reference: None)

    def warmed(concurrency: int, **settings: Any) -> int:
        """Requests of the warm-up, but for the one that every run has."""
        told.clear()
        ladder.measure(settings, Pace(concurrency), 24, "run")
        return sum(stage == "Warm-up" for stage, *_ in told) - 1

    assert warmed(4) == 4
    assert warmed(4) == warmed(2) == 0
    assert warmed(4, max_num_seqs=4) == 0  # from the next step
    assert warmed(8, max_num_seqs=8) == 8
    assert warmed(8, block_size=32) == 8  # another cache
    assert warmed(8, block_size=32) == 0
    ladder.apply({"block_size": 16})
    assert warmed(8) == 8
    assert all(done == 0 for stage, done, _ in told if stage == "Warm-up")


def test_no_warm_up_is_none(engine: SimulatedEngine) -> None:
    plan = Plan(WORKLOAD, Pace(6), num_warmups=0)
    runner = BenchRunner(engine, plan, bandwidth=False, clock=Clock.of(engine))
    runner.variants()
    assert runner._warmed == 0
