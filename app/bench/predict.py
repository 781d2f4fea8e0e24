"""Predicts a workload's figures at other settings, by replaying it on a simulated engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.bench.load import Clock
from app.bench.runner import BenchRunner, Plan, Progress
from engine.simulate.engine import Encode, SimulatedEngine, as_it_is
from engine.simulate.step_time import StepTimes
from engine.snapshot import EngineSnapshot

COMPARED = (
    ("itl_ms", "p50"), ("itl_ms", "p99"), ("ttft_ms", "p50"), ("ttft_ms", "p99"),
    ("output_tokens_per_s", ""),
)  # fmt: skip
"""Key and statistic of the figures whose error is reported."""


def predict(
    like: EngineSnapshot,
    times: StepTimes,
    plan: Plan,
    changes: Mapping[str, Any],
    encode: Encode = as_it_is,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Figures of the plan's first variant with changed settings, and `standard_error`: the relative
    one of the time of all steps, from the fit. like: the engine as it is."""
    engine = SimulatedEngine(like, times, encode, **changes)
    first = dict(list(plan.workload.variants.items())[:1])
    plan = replace(plan, workload=replace(plan.workload, variants=first))
    runner = BenchRunner(engine, plan, progress, False, Clock.of(engine))
    (found,) = runner.variants().values()
    return found | {"standard_error": engine.standard_error}


def errors(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    """Relative errors by "itl_ms.p50", of the figures that both have."""
    found = {}
    for key, statistic in COMPARED:
        pair = [one[key][statistic] if statistic else one[key] for one in (predicted, measured)]
        if pair[0] is not None and pair[1]:
            name = f"{key}.{statistic}" if statistic else key
            found[name] = pair[0] / pair[1] - 1.0
    return found
