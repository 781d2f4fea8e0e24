"""Predicts a workload's figures at other settings, by replaying it on a simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from app.bench.calibrate import calibrate
from app.bench.goals import Goals
from app.bench.load import Clock
from app.bench.progress import Progress
from app.bench.ranking import Objective, rank
from app.bench.runner import BenchRunner, Plan, SettableEngine
from app.bench.sweep import Point, error_words, least_requests
from engine.errors import InferdeckError
from engine.hardware import garbage
from engine.simulate.engine import Encode, SimulatedEngine, as_it_is
from engine.simulate.settings import REPLAYED
from engine.simulate.step_time import StepTimes
from engine.simulate.traffic import fitted
from engine.snapshot import EngineSnapshot

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

COMPARED = (
    ("itl_ms", "p50"), ("itl_ms", "p99"), ("ttft_ms", "p50"), ("ttft_ms", "p99"),
    ("output_tokens_per_s", ""),
)  # fmt: skip
"""Key and statistic of the figures whose error is reported."""
Tell = Callable[[Progress], None]


def predict(
    like: EngineSnapshot,
    times: StepTimes,
    plan: Plan,
    changes: Mapping[str, Any],
    encode: Encode = as_it_is,
) -> dict[str, Any]:
    """Figures of the plan's first variant with changed settings, and `standard_error`: the relative
    one of the time of all steps, from the fit. like: the engine as it is."""
    engine = SimulatedEngine(like, times, encode, **changes)
    first = dict(list(plan.workload.variants.items())[:1])
    plan = replace(plan, workload=replace(plan.workload, variants=first))
    runner = BenchRunner(engine, plan, bandwidth=False, clock=Clock.of(engine))
    with garbage.paused():
        (found,) = runner.variants().values()
    return found | {"standard_error": engine.standard_error}


class Predicted(NamedTuple):
    """Figures by the names of the changes; of the calibration its steps, its seconds and the median
    error of a step."""

    figures: dict[str, dict[str, Any]]
    calibration: dict[str, Any]


def predict_all(
    engine: SettableEngine,
    plan: Plan,
    changes: Mapping[str, Mapping[str, Any]],
    encode: Encode,
    tell: Tell,
    clock: Clock = Clock(),  # noqa: B008 - immutable
) -> Predicted:
    """Calibrates, then predicts each of the named changes. Raises ConfigError for too few steps."""
    found = calibrate(
        engine, plan, list(changes.values()), encode,
        lambda stage, done, total: tell(Progress("Calibration", done, total, None, "loads")),
        clock=clock,
    )  # fmt: skip
    times = fitted(found.samples)
    like = engine.snapshot()
    figures = {}
    for done, (name, change) in enumerate(changes.items()):
        tell(Progress("Prediction", done, len(changes), None, "combinations"))
        figures[name] = predict(like, times, plan, change, encode)
    return Predicted(figures, {
        "steps": len(found.samples), "seconds": found.seconds, "median_error": times.spread,
    })  # fmt: skip


def guess_of(
    runner: BenchRunner, goals: Goals, objective: Objective, encode: Encode, tell: Tell,
    failed: Callable[[str], object],
) -> Callable[[Sequence[Point]], Sequence[Point]]:
    """Of a search: its points from the best to the worst as predicted, with their predictions; none
    if these settings cannot be predicted. `failed` is called with the reason where the calibration
    fails."""

    def guess(points: Sequence[Point]) -> Sequence[Point]:
        engine = runner.engine
        names = {name for point in points for name in point.settings}
        if engine.config.speculative_method != "off" or not names <= set(REPLAYED):
            return ()
        count = least_requests(runner.plan.workload.num_requests, runner.plan.pace)
        changes = {point.label: point.settings for point in points}
        try:
            found, _ = predict_all(
                engine, runner.plan.with_requests(count), changes, encode, tell, runner.clock
            )
        except InferdeckError as problem:
            failed(f"No predictions: the calibration failed. {error_words(problem)}")
            return ()
        for point in points:
            point.predicted = found[point.label]
        by = Objective.THROUGHPUT if objective is Objective.GOODPUT else objective
        known = {label: rank(Point({}, figures=one), goals, by) for label, one in found.items()}
        return sorted(points, key=lambda point: known[point.label], reverse=True)

    return guess


def encode_with(tokenizer: Callable[[], Tokenizer], context: int) -> Encode:
    """Token ids of texts and messages; the tokenizer is only made for these."""

    def encode(prompt: Any) -> Sequence[int]:
        if not isinstance(prompt, str) and isinstance(prompt[0], int):
            return as_it_is(prompt)
        from engine.sampling_params import SamplingParams
        from engine.text.tokenizer import encode_prompt

        return encode_prompt(prompt, tokenizer(), SamplingParams(), context).token_ids

    return encode


def errors(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    """Relative errors by "itl_ms.p50", of the figures that both have."""
    found = {}
    for key, statistic in COMPARED:
        pair = [one[key][statistic] if statistic else one[key] for one in (predicted, measured)]
        if pair[0] is not None and pair[1]:
            name = f"{key}.{statistic}" if statistic else key
            found[name] = pair[0] / pair[1] - 1.0
    return found
