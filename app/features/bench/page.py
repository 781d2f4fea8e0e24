"""The Bench page.

    +-----------------------------------------------------------+
    | Sweep Tune Ladder                                Run      |
    | workload, arrivals; settings to sweep, to vary, to add    |
    | goals                                                     |
    | answer: which point is the fastest under the goals        |
    +-----------------------------+-----------------------------+
    | a row for each point        | curves, with the goal       |
    +-----------------------------+-----------------------------+
    | compare with an earlier run           Apply Copy Export   |
    +-----------------------------------------------------------+

Its view is built when the page is first shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFileDialog, QSizePolicy, QStackedWidget, QWidget

from app.bench import ladder_record
from app.bench.export import SUFFIXES
from app.bench.ladder_record import LadderResult
from app.bench.ladder_record import export as export_ladder
from app.bench.point_table import export
from app.bench.ranking import Objective
from app.bench.record import from_run
from app.bench.sweep import in_words
from app.features.bench.apply_bar import ApplyBar
from app.features.bench.controller import BenchController
from app.features.bench.form import NO_MODEL, BenchForm, Mode
from app.features.bench.jobs import BenchPlan, OtherEngines, Result
from app.features.bench.kept_choices import choices_of, recall
from app.features.bench.ladder_view import LadderView
from app.features.bench.prompts import Source
from app.features.bench.results import LATENCY, MEMORY, ResultsView
from app.features.runs.book import Content, RunBook, with_suffix
from app.features.tune.engine_settings import EngineSettingsPanel
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.storage.run_records import Kind, RunRecord, State
from app.window.commands import Command
from app.window.leave_guard import LeaveGuard
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from widgets.controls.frames import Contained, scroll_area
from widgets.controls.layouts import dressed, stack, vbox
from widgets.theme.fonts import scaled
from widgets.theme.theme import theme_notifier

LOSS = "Closing stops the run, keeps the results so far and restores the settings."
NO_RUN = "none"
RESULTS = 320
"""Least height of the results at the default text size."""


class BenchPage(QWidget):
    """`commands_changed`: the state of a command may have changed."""

    commands_changed = Signal()
    wants_front = Signal()

    def __init__(
        self, bridge: EngineBridge, book: RunBook, settings: EngineSettingsPanel,
        sources: Sequence[Source], others: OtherEngines, store: SettingsStore,
    ) -> None:  # fmt: skip
        """settings: applies those of a trial, with undo. sources: the user's own prompts. others:
        engines to compare ours with. store: keeps the choices."""
        super().__init__()
        self._settings = settings
        self._bridge, self._book, self._sources = bridge, book, sources
        self.bench = BenchController(bridge, book.keep, others, self)
        self.bench.changed.connect(self._on_changed)
        self._store = store
        asks_to_leave = lambda: store.preferences.get("confirm_leave")
        self.leaving = LeaveGuard(asks_to_leave, self.bench.cancel, LOSS, self)
        self._earlier: list[RunRecord] = []
        # starts once these settings are applied
        self._next: tuple[BenchPlan, Mapping[str, Any]] | None = None
        self._layout = vbox(of=self)

    def commands(self) -> list[Command]:
        return [
            Command("bench.run", "Run sweep", partial(self._run, Mode.SWEEP), "Tune",
                    section="bench", is_enabled=self._may_run,
                    keywords="benchmark batch limit ITL TTFT goodput"),
            Command("bench.tune", "Search for the best settings", partial(self._run, Mode.TUNE),
                    "Tune", section="bench", is_enabled=self._may_run,
                    keywords="tune optimize goodput memory cost pareto"),
            Command("bench.ladder", "Run ladder", partial(self._run, Mode.LADDER), "Tune",
                    section="bench", is_enabled=self._may_run,
                    keywords="naive continuous paged prefix quantized speculation waterfall"),
            Command("bench.cancel", "Cancel run", self.bench.cancel, "Tune", section="bench",
                    is_enabled=lambda: self.bench.is_running),
        ]  # fmt: skip

    def _may_run(self) -> bool:
        return not self._why_not and not self.bench.is_running

    @property
    def _why_not(self) -> str:
        """Why no run can start, or ""."""
        if not self._bridge.is_ready:
            return NO_MODEL
        return self._bridge.busy

    def may_close(self, window: QWidget) -> bool:
        """Whether the window may close now. During a run it asks first (a preference)."""
        return self.leaving.may_close(self.bench.title, window)

    def close_down(self, timeout_s: float) -> None:
        self._keep_choices()
        self._next = None
        self.bench.close_down(timeout_s)

    # The view -----------------------------------------------------------------------------------

    @cached_property
    def form(self) -> BenchForm:
        form = BenchForm(self._bridge, self._sources, self.bench.engine_names, self)
        form.run_wanted.connect(self._start)
        form.cancel_wanted.connect(self.bench.cancel)
        form.goal_fields.changed.connect(self.bench.set_goals)
        recall(form, self._store.bench_choice)
        self.bench.set_goals(form.goal_fields.goals)
        form.mode_changed.connect(self._on_mode)
        self._bridge.state_changed.connect(lambda state: self._on_changed())
        for signal in (self._bridge.reconfiguring, self._bridge.reconfigure_failed):
            signal.connect(lambda _: self._show_why_not())
        self._settings.actions_changed.connect(self._show_why_not)
        return form

    @cached_property
    def results(self) -> ResultsView:
        results = ResultsView()
        results.show_mode(self.form.mode)
        results.goals_moved.connect(self.form.goal_fields.set_goals)
        results.earlier.activated.connect(self._load_earlier)
        self._connect(results.bar)
        self._book.changed.connect(self._fill_earlier)
        return results

    @cached_property
    def ladder(self) -> LadderView:
        view = LadderView()
        self._connect(view.bar)
        return view

    def _connect(self, bar: ApplyBar) -> None:
        bar.apply_wanted.connect(self._apply)
        bar.undo_wanted.connect(self._undo)
        bar.copy_wanted.connect(self._settings.show_command)
        bar.export_wanted.connect(lambda: self._ask_export(self.shown.result))

    @property
    def shown(self) -> ResultsView | LadderView:
        return self.ladder if self.form.mode is Mode.LADDER else self.results

    @cached_property
    def views(self) -> QStackedWidget:
        views = stack(self.results, self.ladder)
        views.setCurrentWidget(self.shown)
        return views

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._layout.count():
            self._build()
            self._book.reload()
        self._on_changed()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._keep_choices()

    def _keep_choices(self) -> None:
        if self._layout.count():
            self._store.bench_choice = choices_of(self.form)

    def _build(self) -> None:
        """The form is as high as its rows; the results shrink, then all scrolls."""
        results, policies = Contained(self.views), QSizePolicy.Policy
        results.setSizePolicy(policies.Ignored, policies.Ignored)
        # it puts its parts below each other by the width that it has, not by what they would like
        self.form.setSizePolicy(policies.Ignored, policies.Preferred)
        self._results = results
        self._fit()
        theme_notifier().changed.connect(self._fit)
        content = dressed(QWidget(), bare=True)
        vbox(self.form, (results, 1), of=content)
        area = scroll_area(content, "Bench")
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields take the focus
        self._layout.addWidget(area)

    def _fit(self) -> None:
        self._results.setMinimumHeight(scaled(RESULTS))

    def _run(self, mode: Mode) -> None:
        self.wants_front.emit()
        self.form.choose(mode)
        self.form.press_run()

    def _start(self, plan: BenchPlan) -> None:
        self._settings.commands.send_live()  # a value that was just typed
        if sent := self._settings.model.sent:
            self._next = plan, {n: value for one in sent for n, value in one.changes.items()}
            return
        if plan.tune is not None:
            is_memory = plan.tune.objective is Objective.MEMORY
            self.results.show_kind(MEMORY if is_memory else LATENCY)
        self._show_applied("", can_undo=False)
        self.bench.start(plan)

    def _on_mode(self, mode: Mode) -> None:
        self.results.show_mode(mode)
        self.views.setCurrentWidget(self.shown)

    def _apply(self, settings: Mapping[str, Any]) -> None:
        """As one step that can be undone."""
        if self._bridge.locked:
            self._show_applied(self._bridge.locked, can_undo=False)
        elif settings and self._settings.commands.may_change:
            self._settings.commands.change(settings)
            self._show_applied(f"Applied: {in_words(settings)}.", can_undo=True)

    def _show_applied(self, text: str, *, can_undo: bool) -> None:
        for view in (self.results, self.ladder):
            view.bar.show_applied(text, can_undo=can_undo)

    def _undo(self) -> None:
        if self._bridge.locked:
            self._show_applied(self._bridge.locked, can_undo=True)
            return
        self._settings.commands.undo()
        self._show_applied("Restored the previous settings.", can_undo=False)

    def _on_changed(self) -> None:
        if self._layout.count():
            self.results.show_result(self.bench.result)
            self.ladder.show_result(self.bench.ladder)
            self._show_state()
        self._show_why_not()

    def _show_why_not(self) -> None:
        """Whether a run can start."""
        self.commands_changed.emit()
        if self._layout.count():
            self.form.show_why_not(self._why_not)
        if self._next is not None and not self._settings.model.sent:
            (plan, wanted), self._next = self._next, None
            applied = self._settings.model.applied
            if applied is not None and all(getattr(applied, n) == wanted[n] for n in wanted):
                self._start(plan)

    def _show_state(self) -> None:
        """How far a run is, or why it ended."""
        bench = self.bench
        progress = bench.progress
        text, share = "", 0.0
        if bench.is_running and progress is not None:
            text, share = str(progress), progress.share
        self.form.show_state(bench.is_running, text, share, bench.problem)

    # Runs ---------------------------------------------------------------------------------------

    def _fill_earlier(self) -> None:
        self._earlier = [run for run in self._book.runs if run.kind is Kind.BENCH
                         and run.state is not State.RUNNING]  # fmt: skip
        titles = [f"{run.title}, {run.created[:16].replace('T', ' ')}" for run in self._earlier]
        self.results.offer_earlier([NO_RUN, *titles])

    def _load_earlier(self, row: int) -> None:
        if not 0 < row <= len(self._earlier):
            self.results.show_earlier(None)
            return
        self._book.load([self._earlier[row - 1]], self._show_earlier)

    def _show_earlier(self, found: list[Content]) -> None:
        try:
            result = from_run(found[0].run)
        except ValueError as error:
            self._book.say(ErrorInfo(f"This run is damaged: {error}."))
            return
        if self.bench.result is None:
            self.bench.show_result(result)
            self.form.goal_fields.set_goals(result.goals)
        self.results.show_earlier(result)

    def show_run(self, run: RunRecord) -> None:
        """A stored sweep, search or ladder, as after its end."""
        if self.bench.is_running:
            self._book.say(ErrorInfo("A run is in progress.", "Open this one after it."))
            return
        self.wants_front.emit()
        self._book.load([run], self._show_kept)

    def _show_kept(self, found: list[Content]) -> None:
        run = found[0].run
        is_ladder = run.kind is Kind.LADDER
        try:
            result = ladder_record.from_run(run) if is_ladder else from_run(run)
        except (KeyError, TypeError, ValueError) as error:
            self._book.say(ErrorInfo(f"This run is damaged: {error}."))
            return
        if is_ladder != (self.form.mode is Mode.LADDER):
            self.form.choose(Mode.LADDER if is_ladder else Mode.SWEEP)
        self.bench.show_result(result)
        if not is_ladder:
            self.form.goal_fields.set_goals(result.goals)

    def _ask_export(self, result: Result | None) -> None:
        if result is None:
            return
        kinds = ";;".join(f"{title} (*{suffix})" for suffix, title in SUFFIXES.items())
        file, kind = QFileDialog.getSaveFileName(self, "Export", "bench.html", kinds)
        if file:
            self.export(result, with_suffix(Path(file), kind, SUFFIXES))

    def export(self, result: Result, file: Path) -> None:
        """PNG: table and chart as they are shown."""
        done = lambda _: self._book.tell(f"Exported to {file}.")
        if file.suffix.lower() == ".png":
            view = self.ladder if isinstance(result, LadderResult) else self.results
            picture = view.grab().toImage()
            run_task(self, partial(picture.save, str(file)), done, self._book.say)
        elif isinstance(result, LadderResult):
            run_task(self, partial(export_ladder, result, file), done, self._book.say)
        else:
            run_task(self, partial(export, result, file), done, self._book.say)
