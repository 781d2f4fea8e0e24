"""Predicted against measured figures: four workloads, twelve changes of settings each.

    python -m tests.benchmarks.prediction [--model DIR] [--dummy] [--quick]

Calibrations and measured runs alternate, one by one, so that both see the same machine: others slow
it down for seconds. A case's prediction is made from all calibrations around its runs, and its
figures are medians over runs. Time is the engine thread's CPU time (one compute thread): while
other programs have the core it stands still. What they do to caches and clock rates remains; the
spread of the runs shows it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from app.bench.calibrate import calibrate
from app.bench.load import Clock, EngineRun, Pace, run_load
from app.bench.runner import Plan, vocabulary_of, warm_batches
from app.bench.workload import Length, Workload
from app.paths import starter_model
from engine import EngineConfig, LLMEngine
from engine.hardware import garbage
from engine.simulate.engine import SimulatedEngine
from engine.simulate.step_time import Measured, StepTimes
from tests.benchmarks.report import (
    arguments,
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)

CONCURRENCY = 8
REQUESTS = 104
"""Of a run: a p99 of fewer than 100 is a maximum, which one coincidence decides."""
CONTEXT = 2048
WORKLOADS = (
    Workload("voice-bot", "Voice bot", REQUESTS, Length(700, 800), Length(40, 60),
             variants={"shared": 600}),
    Workload("query-rewrite", "Query rewriting", REQUESTS, Length(10, 20), Length(10, 20)),
    Workload("system-prompt", "Shared system prompt", REQUESTS, Length(280, 360), Length(20, 80),
             variants={"shared": 256}),
    Workload("mixed-lengths", "Mixed lengths", REQUESTS, Length(8, 600, 90, 1.1),
             Length(4, 200, 60, 0.9)),
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "max_num_seqs": CONCURRENCY, "max_num_batched_tokens": 512, "block_size": 16
}  # fmt: skip
FIGURES = ("itl p50", "ttft p99", "tokens/s")
MOST_MEDIAN, MOST = 0.10, 0.25
RUNS = 3
"""Of a case, each between two calibrations."""


class Case(NamedTuple):
    name: str
    changes: Mapping[str, Any]
    pace: Pace


class ThreadClock:
    """CPU time of this thread, in which sleep passes at once."""

    def __init__(self) -> None:
        self._slept = 0.0

    def now(self) -> float:
        return time.thread_time() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += max(0.0, seconds)


def cases(rate: float, cache_bytes: int) -> Iterator[Case]:
    """rate: requests per second of the unchanged load."""
    closed = Pace(CONCURRENCY)
    for setting, values in {
        "max_num_seqs": (2, 4),
        "max_num_batched_tokens": (64, 256),
        "block_size": (4, 128),
        "enable_prefix_caching": (False,),
        "enable_chunked_prefill": (False,),
        "batching": ("static",),
        "kv_cache_memory_bytes": (cache_bytes,),
    }.items():
        for value in values:
            yield Case(f"{setting}={value}", {setting: value}, closed)
    for share in (0.4, 0.8):
        yield Case(f"arrivals at {share:.0%}", {}, Pace(request_rate=share * rate))


def figures(run: EngineRun) -> tuple[float, ...]:
    gaps = [gap for request in run.requests for gap in request.itl_s]
    firsts = [request.ttft_s or 0.0 for request in run.requests]
    return (
        float(np.median(gaps)) * 1e3,
        float(np.percentile(firsts, 99)) * 1e3,
        run.num_output_tokens / run.duration_s,
    )


def medians(runs: list[EngineRun]) -> dict[str, float]:
    levels = np.median([figures(run) for run in runs], axis=0)
    return dict(zip(FIGURES, levels.tolist(), strict=True))


def spreads(runs: list[EngineRun]) -> dict[str, float]:
    """Mean distance of two runs, over the median."""
    every = np.array([figures(run) for run in runs])
    apart = np.mean([np.abs(a - b) for a, b in combinations(every, 2)], axis=0)
    return dict(zip(FIGURES, (apart / np.median(every, axis=0)).tolist(), strict=True))


class Bench:
    """One workload on one engine."""

    def __init__(self, engine: LLMEngine, workload: Workload, clock: Clock) -> None:
        self._engine, self._workload, self._clock = engine, workload, clock
        self._vocabulary = vocabulary_of(engine)
        self._salt = 0

    def run(self, engine: LLMEngine | SimulatedEngine, pace: Pace, clock: Clock) -> EngineRun:
        self._salt += 1
        variant = next(iter(self._workload.variants))
        requests = self._workload.requests(variant, self._vocabulary, 0, self._salt)
        return run_load(engine, requests, pace, clock=clock)

    def calibrate(self) -> list[Measured]:
        plan = Plan(self._workload, Pace(CONCURRENCY))
        changes: list[dict[str, Any]] = [
            {"block_size": 4}, {"block_size": 128}, {"max_num_batched_tokens": 64}
        ]  # fmt: skip
        found = calibrate(self._engine, plan, changes, least_s=0.0, clock=self._clock)
        return found.samples

    def results(self) -> Iterator[dict[str, Any]]:
        engine, clock = self._engine, self._clock
        self.run(engine, Pace(CONCURRENCY), clock)  # kernels are chosen
        usual = self.run(engine, Pace(CONCURRENCY), clock)
        rate = len(usual.requests) / usual.duration_s
        blocks = -(-self._workload.longest_request // engine.config.block_size) * CONCURRENCY // 2
        cache_bytes = blocks * engine.plan.bytes_per_block
        before = self.calibrate()
        for case in cases(rate, cache_bytes):
            samples, measured = list(before), []
            for _ in range(RUNS):
                measured.append(self._measure(case))
                before = self.calibrate()
                samples += before
            times = StepTimes.fit(samples)
            began = time.process_time()
            simulated = SimulatedEngine(engine.snapshot(), times, **case.changes)
            own = Clock.of(simulated)
            with garbage.paused():  # as app.bench.predict
                predicted = [self.run(simulated, case.pace, own) for _ in range(RUNS)]
            took = time.process_time() - began
            yield self._compared(case, predicted, measured, took)

    def _measure(self, case: Case) -> EngineRun:
        base = self._engine.config
        self._engine.reconfigure(**case.changes)
        warm = warm_batches(CONCURRENCY, self._vocabulary)  # as before a run of a sweep
        run_load(self._engine, warm, Pace(), clock=self._clock)
        run = self.run(self._engine, case.pace, self._clock)
        self._engine.reconfigure(**{name: getattr(base, name) for name in case.changes})
        return run

    def _compared(
        self, case: Case, predicted: list[EngineRun], measured: list[EngineRun], took: float
    ) -> dict[str, Any]:
        expected, found = medians(predicted), medians(measured)
        return {
            "workload": self._workload.name,
            "change": case.name,
            "predicted": expected,
            "measured": found,
            "error": {name: expected[name] / found[name] - 1 for name in FIGURES},
            "spread": spreads(measured),
            "steps": sum(len(run.observed.steps) for run in predicted),
            "replay_s": took,
        }


def print_rows(rows: list[dict[str, Any]]) -> None:
    header = ["workload, change"]
    for name in FIGURES:
        header += [name, "measured", "error", "spread"]
    cells = []
    for row in rows:
        line = [f"{row['workload']}, {row['change']}"]
        for name in FIGURES:
            line += [f"{row['predicted'][name]:.1f}", f"{row['measured'][name]:.1f}"]
            line += [f"{row['error'][name]:+.1%}", f"{row['spread'][name]:.1%}"]
        cells.append(line)
    print_table(header, cells)


def main(argv: list[str] | None = None) -> int:
    parser = arguments("Predicted against measured figures.")
    parser.add_argument("--model", default=str(starter_model()), metavar="DIR")
    parser.add_argument("--dummy", action="store_true", help="random weights of the model's shape")
    args = parser.parse_args(argv)
    clock = ThreadClock()
    timing = Clock(clock.now, clock.sleep)
    load_format = "dummy" if args.dummy else "auto"
    config = EngineConfig(
        model=args.model, load_format=load_format, num_threads=1, max_model_len=CONTEXT, **SETTINGS
    )
    engine = LLMEngine(config, clock=clock.now)
    rows: list[dict[str, Any]] = []
    try:
        with watch_others():
            for workload in WORKLOADS[:1] if args.quick else WORKLOADS:
                for row in Bench(engine, workload, timing).results():
                    rows.append(row)
                    found = ", ".join(f"{name} {row['error'][name]:+.1%}" for name in FIGURES)
                    print(f"{row['workload']}, {row['change']}: {found}", file=sys.stderr)
    finally:
        engine.shutdown()
    print_rows(rows)
    errors = [(abs(row["error"][name]), row["spread"][name]) for row in rows for name in FIGURES]
    goals = []
    for name in FIGURES:
        middle = statistics.median(abs(row["error"][name]) for row in rows)
        text = f"median error of {name} at most {MOST_MEDIAN:.0%}"
        goals.append(at_most(text, 100 * middle, 100 * MOST_MEDIAN, " %"))
    beyond = sum(error > max(MOST, 2 * spread) for error, spread in errors)
    text = f"errors above {MOST:.0%} and twice the spread, of {len(errors)}"
    goals.append(at_most(text, beyond, 0))
    steps, seconds = sum(row["steps"] for row in rows), sum(row["replay_s"] for row in rows)
    goals.append(at_most("20,000 steps replayed within 5 s", 20_000 * seconds / steps, 5, " s"))
    print_goals(goals)
    report = {**context(), "model": args.model, "rows": rows}
    write_json(args.output_json, report | {"goals": [goal.as_dict() for goal in goals]})
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
