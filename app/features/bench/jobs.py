"""What the Bench page runs on the window's engine: a sweep, a search or a ladder. No Qt.

A job is made in the GUI thread, runs in its own, and is read from both: `result` while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from app.bench.calibrate import CHANGED
from app.bench.engines import EnginesBench, Reached
from app.bench.goals import Goals
from app.bench.ladder import Ladder
from app.bench.ladder_bench import EngineLadder, MeasureQuality
from app.bench.ladder_record import LadderResult
from app.bench.ladder_record import to_run as ladder_run
from app.bench.load import Pace
from app.bench.predict import encode_with, guess_of
from app.bench.progress import Progress
from app.bench.ranking import Objective
from app.bench.record import BenchResult, to_run
from app.bench.rungs import Choices, State, rungs_of, settings_of
from app.bench.runner import BenchRunner, Plan
from app.bench.sweep import (
    ENGINE,
    LOADS,
    NO_SETTINGS,
    Axis,
    Bench,
    Sweep,
    SweepCancelledError,
)
from app.bench.tuner import Tuner, most_trials
from app.bench.workload import Workload
from app.storage.run_records import RunRecord
from app.storage.run_records import State as RunState
from engine.config import EngineConfig
from engine.hardware.peaks import Peaks
from engine.simulate.engine import Encode
from engine.snapshot import ModelInfo

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

Result = BenchResult | LadderResult
Tell = Callable[[Progress], None]


class TuneChoice(NamedTuple):
    """`most`: trials, 0 for a quarter of the combinations."""

    objective: Objective
    most: int = 0


class LadderChoice(NamedTuple):
    """`price`: of the machine per hour, None where it is not given."""

    choices: Choices
    price: float | None = None


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What the user chose. `variant`: of the workload; `pace`: where no load is swept. `tune`: a
    search over the axes in place of a sweep; `ladder`: in place of both."""

    workload: Workload
    variant: str
    axes: tuple[Axis, ...]
    pace: Pace
    rounds: int
    num_warmups: int
    tune: TuneChoice | None = None
    ladder: LadderChoice | None = None

    @property
    def title(self) -> str:
        """ "A sweep (Voice bot)"."""
        kind = "ladder" if self.ladder else "search" if self.tune else "sweep"
        return f"A {kind} ({self.workload.title})"

    @property
    def words(self) -> str:
        has_load = self.ladder is not None or {axis.name for axis in self.axes} & set(LOADS)
        return self.workload.title if has_load else f"{self.workload.title}, {self.pace}"

    def for_engine(self, config: EngineConfig) -> Plan:
        """Requests that end before their limit take a step more from here: the limit is kept where
        memory is reserved for it."""
        work = self.workload
        reserves = config.kv_allocation == "contiguous" or self.ladder is not None
        work = replace(
            work, variants={self.variant: work.variants[self.variant]},
            max_tokens=work.max_tokens if reserves else None,
        )  # fmt: skip
        return Plan(work, self.pace, num_warmups=self.num_warmups, rounds=self.rounds)

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of those that it compares."""
        return next((axis.values for axis in self.axes if axis.name == ENGINE), ())


class OtherEngines(Protocol):
    """Engines beside the one of the window. `reach` is called by the thread of a job, the others in
    the GUI thread; `release` when it has ended."""

    def names(self) -> list[str]: ...
    def reach(self, name: str, is_over: Callable[[], bool]) -> Reached: ...
    def release(self) -> None: ...


class JobEngine(Protocol):
    """What jobs need of the window's engine, besides a `SettableEngine`."""

    def peaks(self) -> Peaks | None: ...
    def is_over(self) -> bool: ...


class Job(Protocol):
    """`settings`: names of those that it changes. `remark`: what went wrong and did not end it."""

    settings: list[str]
    remark: str

    def run(self) -> object: ...
    def result(self, model: str, precision: str, goals: Goals, state: RunState) -> Result: ...
    def record(self, result: Any) -> RunRecord | None:
        """None for a result without anything measured."""

    @property
    def was_cancelled(self) -> bool: ...


class SweepJob:
    """All points of the axes, or those that a search chooses."""

    def __init__(
        self, plan: BenchPlan, runner: BenchRunner, engine: JobEngine, goals: Goals, tell: Tell,
        engines: EnginesBench | None = None,
    ) -> None:  # fmt: skip
        """engines: that measure in place of `runner`."""
        self._plan = plan
        self.remark = ""
        self.settings = [axis.name for axis in plan.axes if axis.name not in NO_SETTINGS]
        search, most = None, 0
        if plan.tune is not None:
            count = math.prod(len(axis.values) for axis in plan.axes)
            most = plan.tune.most or most_trials(count)
            search = Tuner(plan.axes, goals, most, objective=plan.tune.objective)
            model = runner.engine.model_info
            if model.is_described:  # else its steps are not known
                search.guess = guess_of(
                    runner, goals, search.objective, _encode_for(model),
                    _unless_over(engine, tell), self._say,
                )
                self.settings = list(dict.fromkeys([*self.settings, *CHANGED]))
        bench: Bench = runner
        if engines is not None:
            bench, tell = engines, engines.show
        self._sweep = Sweep(
            bench, plan.axes, plan.pace, plan.workload.num_requests, plan.rounds, tell, search,
            most,
        )  # fmt: skip
        runner.progress = self._sweep.on_request
        if engines is not None:
            engines.progress = self._sweep.on_request
        self.run = self._sweep.run

    def _say(self, remark: str) -> None:
        self.remark = remark

    @property
    def was_cancelled(self) -> bool:
        return self._sweep.was_cancelled

    def result(self, model: str, precision: str, goals: Goals, state: RunState) -> BenchResult:
        plan, points = self._plan, self._sweep.points
        if plan.tune is not None:
            points = [point for point in points if point.figures or point.error]
        objective = plan.tune.objective if plan.tune else Objective.THROUGHPUT
        return BenchResult(
            model, precision, plan.words, tuple(points), goals, state, rounds=plan.rounds,
            objective=objective,
        )  # fmt: skip

    def record(self, result: BenchResult) -> RunRecord | None:
        done = any(point.figures or point.error for point in result.points)
        return to_run(result) if done else None


class LadderJob:
    remark = ""

    def __init__(
        self, plan: BenchPlan, runner: BenchRunner, engine: Any, goals: Goals,
        measure_quality: MeasureQuality, tell: Tell,
    ) -> None:  # fmt: skip
        assert plan.ladder is not None
        self._plan, self._engine = plan, engine
        rungs = rungs_of(engine.config, engine.model_info, plan.ladder.choices)
        self.settings = settings_of(rungs)
        self._ladder = Ladder(
            EngineLadder(engine, runner, measure_quality), rungs, goals,
            plan.workload.num_requests, rounds=plan.rounds, progress=tell,
        )  # fmt: skip
        runner.progress = self._ladder.on_request

    def run(self) -> None:
        self._ladder.peaks = self._engine.peaks()
        self._ladder.run()

    @property
    def was_cancelled(self) -> bool:
        return self._ladder.was_cancelled

    def result(self, model: str, precision: str, goals: Goals, state: RunState) -> LadderResult:
        """The goals are those of its start: users were searched under them."""
        ladder, chosen = self._ladder, self._plan.ladder
        price = chosen.price if chosen else None
        return LadderResult(
            model, precision, self._plan.words, tuple(ladder.rungs), ladder.goals, price, state
        )

    def record(self, result: LadderResult) -> RunRecord | None:
        done = any(rung.state in (State.MEASURED, State.FAILED) for rung in result.rungs)
        return ladder_run(result) if done else None


def make_job(
    plan: BenchPlan, runner: BenchRunner, engine: Any, goals: Goals,
    measure_quality: MeasureQuality, tell: Tell, others: OtherEngines,
) -> Job:  # fmt: skip
    """engine: a `JobEngine`."""
    if plan.ladder is not None:
        return LadderJob(plan, runner, engine, goals, measure_quality, tell)
    engines = None
    if plan.engines:
        own = runner if engine.model_info.is_described else None
        reach = lambda name: others.reach(name, engine.is_over)
        chosen = plan.for_engine(engine.config)
        engines = EnginesBench(own, reach, chosen, tell, engine.is_over)
    return SweepJob(plan, runner, engine, goals, tell, engines)


def _encode_for(model: ModelInfo) -> Encode:
    def tokenizer() -> Tokenizer:
        from engine.text.tokenizer import Tokenizer

        return Tokenizer.from_folder(model.path, allow_missing=True)

    return encode_with(cache(tokenizer), model.max_model_len)


def _unless_over(engine: JobEngine, tell: Tell) -> Tell:
    """Nothing else of a prediction asks the engine."""

    def told(progress: Progress) -> None:
        if engine.is_over():
            raise SweepCancelledError
        tell(progress)

    return told


def values_before(config: EngineConfig, names: list[str]) -> Mapping[str, Any]:
    return {name: getattr(config, name) for name in names}
