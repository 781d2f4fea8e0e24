"""Predictions on a scripted engine whose step times are known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.bench.calibrate import _Replayed, batch_sizes, calibrate
from app.bench.load import Clock, Pace, run_load
from app.bench.predict import errors, predict
from app.bench.runner import BenchRunner, Plan
from app.bench.workload import Length, Workload
from engine.simulate.engine import SimulatedEngine
from engine.simulate.step_time import Measured, StepTimes, StepWork
from engine.snapshot import EngineSnapshot
from tests.tiers import first_fast
from tests.widgets import synthetic

KNOWN = StepTimes.exact(
    step=4e-3, token=2e-4, requests=3e-4, logits=1e-4, context=1e-6, pairs=1e-7, chunks=5e-4,
    distinct=5e-7, launch=2e-3, evicted=3e-3,
)
WORKLOAD = Workload(
    "test", "Test", 24, Length(10, 300), Length(4, 40), variants={"shared": 64, "unique": 0}
)


def like() -> EngineSnapshot:
    snapshot = synthetic.snapshot(0.0)
    config = snapshot.config.replace(max_num_batched_tokens=128, max_num_seqs=8)
    memory = dataclasses.replace(snapshot.memory, plan=synthetic.PLAN.with_blocks(400))
    model = dataclasses.replace(snapshot.model, vocab_size=1000)
    return dataclasses.replace(snapshot, config=config, memory=memory, model=model)


def clock_of(engine: SimulatedEngine) -> Clock:
    return Clock.of(engine)


def scripted(**changes: Any) -> SimulatedEngine:
    return SimulatedEngine(like(), KNOWN, **changes)


CHANGES: list[dict[str, Any]] = [
    {}, {"max_num_seqs": 2}, {"max_num_batched_tokens": 32}, {"batching": "static"},
    {"enable_prefix_caching": False}, {"enable_chunked_prefill": False}, {"block_size": 64},
]  # fmt: skip
SMALL_CACHE = {"kv_cache_memory_bytes": 40 * synthetic.PLAN.bytes_per_block}


@pytest.mark.parametrize("pace", first_fast(1, [Pace(6), Pace(request_rate=10.0), Pace()]), ids=str)
def test_figures_at_other_settings_are_those_of_the_engine(pace: Pace) -> None:
    """Within 1 %: calibrated once, before the settings change."""
    plan = Plan(WORKLOAD, pace)
    engine = scripted()
    found = calibrate(engine, plan, CHANGES, clock=clock_of(engine))
    times = StepTimes.fit(found.samples)
    for change in CHANGES:
        real = scripted(**change)
        measured = BenchRunner(real, plan, bandwidth=False, clock=clock_of(real)).variants()
        predicted = predict(engine.snapshot(), times, plan, change)
        found_errors = errors(predicted, measured["shared"])
        assert {"itl_ms.p50", "itl_ms.p99", "ttft_ms.p50"} < set(found_errors)
        assert max(map(abs, found_errors.values())) < 0.01
        assert predicted["preemptions"] == measured["shared"]["preemptions"]
        assert predicted["prefix_cache_hit_rate"] == measured["shared"]["prefix_cache_hit_rate"]


def test_a_calibration_leaves_out_the_steps_before_a_recording_is_replayed() -> None:
    """Decode steps of a number of requests, up to the first two in a row; chunks stay."""
    step = lambda count, chunks=0: Measured(
        StepWork(count, count, count, 0, chunks, 0, 0, 0, 0), 1.0
    )
    first = [step(1), step(4, 1), step(2), step(1), step(1), step(1), step(2), step(2)]
    then = [step(2), step(3), step(1), step(3), step(3), step(3)]
    replayed = _Replayed()
    assert list(replayed.of(first)) == [first[1], first[5]]
    assert list(replayed.of(then)) == [then[0], then[2], then[5]]


def test_a_calibration_puts_the_settings_back_and_covers_the_batch_sizes() -> None:
    engine = scripted(batching="static", enable_prefix_caching=False)
    before = engine.config
    changes: list[dict[str, Any]] = [{"block_size": 32}, {"max_num_batched_tokens": 256}]
    found = calibrate(engine, Plan(WORKLOAD, Pace(6)), changes, clock=clock_of(engine))
    assert engine.config == before and not engine.has_unfinished
    assert found.seconds == pytest.approx(engine.now())
    works = [sample.work for sample in found.samples]
    assert {work.requests for work in works if not work.chunks} >= set(batch_sizes(6))
    assert max(work.tokens for work in works) > 128
    assert any(work.chunks and work.context for work in works)  # a prompt beside decodes
    alone = [work for work in works if work.chunks == work.requests == 1 and work.tokens > 64]
    shared = {work.chunk_context - work.tokens for work in alone}
    assert 64 in shared, "the workload's prompts, of which the first tokens are cached"


def test_settings_are_put_back_after_a_failed_calibration() -> None:
    engine = scripted(batching="static")
    before = engine.config

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(engine, Plan(WORKLOAD, Pace(6)), progress=stop, clock=clock_of(engine))
    assert engine.config == before


def test_batch_sizes_are_powers_of_two_and_the_most() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(11) == [1, 2, 4, 8, 11]


def test_errors_are_relative_and_of_figures_that_both_have() -> None:
    latency = {"p50": 10.0, "p99": None}
    measured = {"itl_ms": latency, "ttft_ms": latency, "output_tokens_per_s": 50.0}
    predicted = {**measured, "output_tokens_per_s": 60.0, "ttft_ms": {"p50": 9.0, "p99": 1.0}}
    found = errors(predicted, measured)
    assert found == pytest.approx(
        {"itl_ms.p50": 0.0, "ttft_ms.p50": -0.1, "output_tokens_per_s": 0.2}
    )


@pytest.mark.parametrize("pace", [Pace(6), Pace(request_rate=10.0), Pace()], ids=str)
@pytest.mark.parametrize("change", [*CHANGES, SMALL_CACHE], ids=str)
def test_steps_taken_together_are_those_taken_one_by_one(
    pace: Pace, change: dict[str, Any]
) -> None:
    """The same steps, times, latency samples and counters, in fewer calls."""
    requests = WORKLOAD.requests("shared", list(range(1000)), 0)
    found, calls = [], []
    for one_by_one in (True, False):
        engine = scripted(**change)
        clock = Clock.of(engine)
        clock = clock._replace(expect=lambda until: None) if one_by_one else clock
        step, count = engine.step, [0]

        def counted(step: Any = step, count: list[int] = count) -> Any:
            count[0] += 1
            return step()

        engine.step = counted  # type: ignore[method-assign]
        run = run_load(engine, requests, pace, clock=clock._replace(look_s=1e9))
        snapshot = engine.snapshot()
        found.append((
            [dataclasses.replace(step, held_back=()) for step in run.observed.steps],
            sorted(run.requests, key=lambda times: times.arrival),
            snapshot.counters,
            engine.standard_error,
        ))  # fmt: skip
        calls.append(count[0])
    (steps, times, *rest), (together, their_times, *their_rest) = found
    assert len(steps) == len(together) > 80
    assert steps == together
    assert times == their_times and rest == their_rest
    assert calls[1] < calls[0] / 2 or change.get("kv_cache_memory_bytes")
