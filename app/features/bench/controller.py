"""`BenchController`: runs a job on the window's engine in a thread, and keeps its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.bench.engines import AWAY, OWN
from app.bench.goals import Goals
from app.bench.ladder_record import LadderResult
from app.bench.progress import Progress
from app.bench.record import BenchResult
from app.bench.runner import BenchRunner
from app.bench.sweep import NO_SETTINGS
from app.features.bench.engine import WindowEngine
from app.features.bench.jobs import (
    BenchPlan,
    Job,
    OtherEngines,
    Result,
    make_job,
    values_before,
)
from app.features.bench.quality import measure_quality
from app.features.models.precision import precision_text
from app.link.bridge import EngineBridge, EngineState
from app.link.tasks import Task, run_task
from app.storage.run_records import RunRecord, State
from engine.errors import ErrorInfo
from engine.messages import Reconfigured, ReconfigureFailed

UNMEASURED = ErrorInfo("The run ended before its first result: nothing was saved.")
LOCKED = "Settings are locked while a benchmark runs."
RESTORING = "Restoring the settings from before the benchmark."
NOT_RESTORED = "The settings from before the benchmark were not restored."
NO_GOAL = ErrorInfo("No goal specified.", "Set a TTFT, ITL or E2E goal.")


class BenchController(QObject):
    """`changed`: a job began or ended, or something was measured. `keep` stores a run. `result`:
    of the last sweep or search; `ladder`: of the last ladder."""

    changed = Signal()
    _moved = Signal(object)

    def __init__(
        self, bridge: EngineBridge, keep: Callable[[RunRecord], object], others: OtherEngines,
        parent: QObject,
    ) -> None:  # fmt: skip
        super().__init__(parent)
        self._bridge, self._keep, self._others = bridge, keep, others
        self.goals = Goals()
        self.progress: Progress | None = None
        self.problem: ErrorInfo | None = None
        self.result: BenchResult | None = None
        self.ladder: LadderResult | None = None
        self.plan: BenchPlan | None = None
        self._task: Task | None = None
        self._engine: WindowEngine | None = None
        self._job: Job | None = None
        self._names = ("", "")
        self._before: Mapping[str, Any] = {}
        self._restored: Mapping[str, Any] = {}  # settings that are being put back
        self._num_awaited = 0  # answers up to theirs
        self._moved.connect(self._on_moved)
        bridge.reconfigured.connect(self._on_answer)
        bridge.reconfigure_failed.connect(self._on_answer)
        bridge.state_changed.connect(self._on_state)
        bridge.loaded.connect(lambda event: self._unlock())  # then no answer comes

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def title(self) -> str:
        """Of the running job; "" without one."""
        return self.plan.title if self.is_running and self.plan is not None else ""

    def start(self, plan: BenchPlan) -> None:
        """Start; `changed` follows, with `problem` where that is impossible."""
        if self.is_running:
            return
        self.problem = self._why_not(plan)
        bridge = self._bridge
        model, config = bridge.model, bridge.config
        if self.problem is not None or model is None or config is None:
            self.changed.emit()
            return
        engine = self._engine = WindowEngine(bridge, self)
        quality = partial(measure_quality, cancelled=engine.is_over)
        try:
            runner = BenchRunner(engine, plan.for_engine(config), bandwidth=False)
            job = make_job(
                plan, runner, engine, self.goals, quality, self._moved.emit, self._others
            )
        except Exception as error:
            self._close_engine()
            self.problem = ErrorInfo(str(error))
            self.changed.emit()
            return
        self.plan, self._job = plan, job
        self._before = values_before(config, job.settings)
        self._names = model.name, precision_text(model, config)
        self._show()
        self._task = run_task(self, job.run, lambda _: self._end(), self._on_failed)
        bridge.lock_settings(LOCKED)
        self.changed.emit()

    def engine_names(self) -> list[str]:
        """Of those that can be compared: ours where it has a model, and the others."""
        return [OWN] * (not self._bridge.is_remote) + self._others.names()

    def _why_not(self, plan: BenchPlan) -> ErrorInfo | None:
        bridge = self._bridge
        if not bridge.is_ready or bridge.config is None or bridge.plan is None:
            return ErrorInfo("No model is loaded.", "Open a model.")
        if bridge.busy:
            return ErrorInfo(bridge.busy, "Wait until it ends.")
        why = bridge.look_only
        if bridge.model is not None and not bridge.model.is_described:
            why = "This server's settings cannot be changed while it runs."
        changes = plan.ladder is not None or any(axis.name not in NO_SETTINGS for axis in plan.axes)
        if changes and why:
            return ErrorInfo(why, "Sweep concurrency or the request rate.")
        known = self.engine_names()
        unknown = [name for name in plan.engines if name not in known]
        if OWN in unknown:
            return ErrorInfo(*AWAY)
        if unknown:
            cause = f"Unknown engine: {', '.join(unknown)}."
            return ErrorInfo(cause, f"Choose from: {', '.join(known)}.")
        searches = plan.ladder is not None or plan.tune is not None
        return NO_GOAL if searches and not self.goals.limits else None

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
                self.result = replace(self.result, goals=goals)
                self.changed.emit()

    def show_result(self, result: Result) -> None:
        """A stored one; the goals of a sweep become the current ones."""
        if isinstance(result, LadderResult):
            self.ladder = result
        else:
            self.result, self.goals = result, result.goals
        self.changed.emit()

    def _on_moved(self, progress: Progress) -> None:
        self.progress = progress
        if self._job is not None and self._job.remark:
            self.problem = ErrorInfo(self._job.remark)
        self._show()

    def _on_failed(self, error: ErrorInfo) -> None:
        self.problem = error
        self._end()

    def _show(self, state: State = State.RUNNING) -> None:
        if self._job is not None:
            found = self._job.result(*self._names, self.goals, state)
            if isinstance(found, LadderResult):
                self.ladder = found
            else:
                self.result = found
        self.changed.emit()

    def _end(self, is_closing: bool = False) -> None:
        engine, job = self._engine, self._job
        self._task = self.progress = None
        if engine is not None and engine.problem is not None:
            self.problem = engine.problem
        config = self._bridge.config
        is_applying = engine is not None and engine.is_applying  # a trial's settings, after these
        changed = {} if config is None else {
            name: value for name, value in self._before.items()
            if is_applying or getattr(config, name) != value
        }  # fmt: skip
        if changed and self._bridge.is_ready:
            self._restored, self._num_awaited = changed, 1 + is_applying
            self._bridge.lock_settings(RESTORING)
            self._bridge.reconfigure(**changed)
        else:
            self._bridge.lock_settings("")
        self._close_engine()
        self._others.release()
        if job is None:
            return
        state = State.STOPPED if job.was_cancelled or is_closing else State.DONE
        run = job.record(job.result(*self._names, self.goals, state))
        if run is None and self.problem is None:
            self.problem = UNMEASURED
        self._show(state)
        self._job = None
        if run is not None:
            self._keep(run)

    def _on_answer(self, event: Reconfigured | ReconfigureFailed) -> None:
        if not self._num_awaited:
            return
        self._num_awaited -= 1
        wanted = self._restored
        is_restored = all(getattr(event.config, name) == wanted[name] for name in wanted)
        if is_restored or not self._num_awaited:
            if isinstance(event, ReconfigureFailed) and not is_restored:
                self.problem = event.error._replace(cause=f"{NOT_RESTORED} {event.error.cause}")
                self.changed.emit()
            self._unlock()

    def _on_state(self, state: EngineState) -> None:
        if state is not EngineState.READY:  # nothing answers any more
            self._unlock()

    def _unlock(self) -> None:
        if self._restored:
            self._restored, self._num_awaited = {}, 0
            self._bridge.lock_settings("")

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine.deleteLater()
            self._engine = None
