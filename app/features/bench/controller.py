"""`BenchController`: runs a sweep on the window's engine in a thread, and keeps its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.bench.goals import Goals
from app.bench.load import Pace
from app.bench.record import BenchResult, to_run
from app.bench.runner import BenchRunner, Plan
from app.bench.sweep import LOADS, Axis, Progress, Sweep
from app.bench.workload import Workload
from app.features.bench.engine import WindowEngine
from app.features.models.precision import precision_text
from app.link.bridge import EngineBridge
from app.link.tasks import Task, run_task
from app.storage.run_records import RunRecord, State
from engine.errors import ErrorInfo


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What the user chose. `variant`: of the workload; `pace`: where no load is swept."""

    workload: Workload
    variant: str
    axes: tuple[Axis, ...]
    pace: Pace
    rounds: int
    num_warmups: int

    @property
    def words(self) -> str:
        swept = {axis.name for axis in self.axes} & set(LOADS)
        return self.workload.title if swept else f"{self.workload.title}, {self.pace}"


class BenchController(QObject):
    """`changed`: a sweep began or ended, or a point was measured. `keep` stores a run."""

    changed = Signal()
    _moved = Signal(object)

    def __init__(
        self, bridge: EngineBridge, keep: Callable[[RunRecord], object], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._bridge, self._keep = bridge, keep
        self.goals = Goals()
        self.progress: Progress | None = None
        self.problem: ErrorInfo | None = None
        self.result: BenchResult | None = None
        self._task: Task | None = None
        self._engine: WindowEngine | None = None
        self._sweep: Sweep | None = None
        self._plan: BenchPlan | None = None
        self._before: Mapping[str, Any] = {}
        self._moved.connect(self._on_moved)

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, plan: BenchPlan) -> None:
        """Start; `changed` follows, with `problem` where that is impossible."""
        bridge = self._bridge
        self.problem = None
        settings = [axis.name for axis in plan.axes if axis.name not in LOADS]
        if self.is_running:
            return
        if not bridge.is_ready or bridge.config is None or bridge.plan is None:
            self._refuse(ErrorInfo("No model is loaded.", "Open a model."))
            return
        why = bridge.look_only
        if bridge.model is not None and not bridge.model.is_described:
            why = "This server's settings cannot be changed while it runs."
        if settings and why:
            self._refuse(ErrorInfo(why, "Sweep concurrency or the request rate."))
            return
        self._plan = plan
        self._before = {name: getattr(bridge.config, name) for name in settings}
        engine = self._engine = WindowEngine(bridge, self)
        workload = plan.workload
        only = {plan.variant: workload.variants[plan.variant]}
        reserves = bridge.config.kv_allocation == "contiguous"
        work = type(workload)(**{
            **{name: getattr(workload, name) for name in workload.__slots__},
            "variants": only, "max_tokens": workload.max_tokens if reserves else None,
        })  # fmt: skip
        made = Plan(work, plan.pace, num_warmups=plan.num_warmups, rounds=plan.rounds)
        try:
            runner = BenchRunner(engine, made, bandwidth=False)
        except Exception as error:
            self._close_engine()
            self._refuse(ErrorInfo(str(error)))
            return
        self._sweep = Sweep(
            runner, plan.axes, plan.pace, work.num_requests, plan.rounds, self._moved.emit
        )
        self._show()
        self._task = run_task(self, self._sweep.run, lambda points: self._end(), self._on_failed)
        self.changed.emit()

    def cancel(self) -> None:
        """Keep what is measured; settings go back."""
        if self._engine is not None:
            self._engine.cancel()

    def close_down(self, timeout_s: float) -> None:
        """Cancel and keep what is measured, as the program ends."""
        self.cancel()
        if self._task is not None:
            self._task.join(timeout_s)
            self._end(is_closing=True)

    def set_goals(self, goals: Goals) -> None:
        if goals != self.goals:
            self.goals = goals
            if self.result is not None:
                self._show(self.result.state)

    def show_result(self, result: BenchResult) -> None:
        """A stored sweep; its goals become the current ones."""
        self.result, self.goals = result, result.goals
        self.changed.emit()

    def _refuse(self, problem: ErrorInfo) -> None:
        self.problem = problem
        self.changed.emit()

    def _on_moved(self, progress: Progress) -> None:
        self.progress = progress
        self._show()

    def _on_failed(self, error: ErrorInfo) -> None:
        self.problem = error
        self._end()

    def _show(self, state: State = State.RUNNING) -> None:
        model, config, plan = self._bridge.model, self._bridge.config, self._plan
        old = self.result
        if self._sweep is not None and plan is not None:
            name = model.name if model is not None else old.model if old else ""
            precision = precision_text(model, config) if model and config else ""
            self.result = BenchResult(
                name, precision, plan.words, tuple(self._sweep.points), self.goals, state,
                rounds=plan.rounds,
            )  # fmt: skip
        elif old is not None:
            self.result = BenchResult(
                old.model, old.precision, old.work, old.points, self.goals, state, old.created,
                old.rounds, old.objective,
            )  # fmt: skip
        self.changed.emit()

    def _end(self, is_closing: bool = False) -> None:
        engine, sweep = self._engine, self._sweep
        self._task = self.progress = None
        if engine is not None and engine.problem is not None:
            self.problem = engine.problem
        config = self._bridge.config
        changed = config is not None and any(
            getattr(config, name) != value for name, value in self._before.items()
        )
        if changed and self._bridge.is_ready:
            self._bridge.reconfigure(**self._before)
        self._close_engine()
        if sweep is None:
            return
        stopped = sweep.was_cancelled or is_closing
        self._show(State.STOPPED if stopped else State.DONE)
        self._sweep = None
        if self.result is not None and any(p.figures or p.error for p in self.result.points):
            self._keep(to_run(self.result))

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine.deleteLater()
            self._engine = None
