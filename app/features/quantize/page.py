"""The Quantize page: forms and reports on the left, progress and results on the right.

+--------------------------------+---------------------------------------+
| Quantize | Evaluate | Reports  | a run: stage, time left, its layers   |
| model, method, text, modules   | or a report: figures, layers, tokens  |
| 8.5 MiB -> about 3.1 MiB       | or several reports side by side       |
| [Quantize] [Copy command line] |                                       |
+--------------------------------+---------------------------------------+
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QWidget

from app.features.quantize.evaluate_form import EvaluateForm
from app.features.quantize.evaluation import (
    EvaluationPlan,
    ModelChoice,
    evaluate_command,
    quantize_command,
)
from app.features.quantize.plan import QuantizePlan, work_of
from app.features.quantize.recipe_form import RecipeForm
from app.features.quantize.reports import ReportList, ReportsController
from app.features.quantize.results import ResultsSide
from app.features.quantize.run import Run, elapsed
from app.features.quantize.start_panel import LeaveGuard, StartPanel
from app.features.quantize.work import Outcome
from app.storage.report_store import ReportStore
from app.storage.trash import Trash
from app.window.commands import Command
from widgets.controls.frames import PageFrame
from widgets.controls.layouts import vbox
from widgets.controls.notice import Toast

if TYPE_CHECKING:
    from engine.evaluate.report import EvaluationReport
    from engine.quantize.recipe import QuantizeResult


QUANTIZE, EVALUATE, REPORTS = 0, 1, 2
"""The page's tabs."""


LEFT_WIDTH, NARROW = 400, 820
HINTS = (
    "Choose a model and a method. The run shows the error per layer, then the quality "
    "relative to the original model.",
    "Choose a model and a reference: another folder, or the same model at another precision or "
    "KV cache dtype.",
    "Select a report to see size, perplexity, divergence, speed, and the tokens with the highest "
    "divergence.",
)


class QuantizePage(QWidget):
    """`run_moved`, `run_over`: of the current job; `seen`: the page was shown or hidden.
    `model_chosen(path)` to open a model, `compare_in_chat(report)`; `model_made(path)`.
    `commands_changed`: the state of a command may have changed."""

    run_moved = Signal()
    run_over = Signal()
    seen = Signal()
    commands_changed = Signal()
    model_chosen = Signal(str)
    model_made = Signal(str)
    compare_in_chat = Signal(object)
    rate_measured = Signal(str, float)  # method, units of work a second
    wants_front = Signal()

    def __init__(
        self,
        store: ReportStore,
        trash: Trash,
        known: Callable[[], Sequence[tuple[str, str]]],
        folder: Callable[[], Path],
        rates: Callable[[], Mapping[str, float]] = dict,
        threads: Callable[[], int | None] = lambda: None,
        current: Callable[[], str] = lambda: "",
        asks_to_leave: Callable[[], bool] = lambda: True,
    ) -> None:
        """`asks_to_leave`: whether closing the window during a run asks first."""
        super().__init__()
        self._known, self._threads, self._current = known, threads, current
        self.run: Run | None = None
        self.ending: tuple[str, bool] | None = None  # outcome of the last job; whether an error
        self._made_plan: QuantizePlan | None = None
        self._shows_made = False
        self._asks_to_leave = asks_to_leave
        self.leaving = LeaveGuard(self.cancel, self)
        self.recipe = RecipeForm(rates, folder)
        self.evaluate = EvaluateForm()
        self.quantize_panel = StartPanel(self.recipe, "Quantize", "Quantize and save the model")
        self.evaluate_panel = StartPanel(self.evaluate, "Evaluate", "Measure quality and speed")
        self.reports = ReportList()
        self._right = ResultsSide()
        self.run_view, self.made = self._right.run_view, self._right.made
        self.report, self.comparison = self._right.report, self._right.comparison
        forms = (
            ("Quantize", self.quantize_panel),
            ("Evaluate", self.evaluate_panel),
            ("Reports", self.reports),
        )
        self._frame = PageFrame(
            "Quantization views", forms, self._right,
            left_width=LEFT_WIDTH, narrow=NARROW,
        )  # fmt: skip
        self.tabs = self._frame.tabs
        vbox(self._frame, of=self, spacing=-1)
        self.toast = Toast(self)
        self.controller = ReportsController(store, trash, self.reports, self.toast, self)
        self._connect()
        self._offer()
        self._show_right()

    def _connect(self) -> None:
        self.tabs.currentChanged.connect(self._show_right)
        self.recipe.changed.connect(self._offer)
        self.evaluate.changed.connect(self._offer)
        self.quantize_panel.start_wanted.connect(self.start_quantizing)
        self.evaluate_panel.start_wanted.connect(self.start_evaluating)
        self.run_view.cancel_wanted.connect(self.cancel)
        self.made.open_wanted.connect(self.model_chosen)
        self.made.measure_wanted.connect(self._measure_made)
        self.reports.chosen.connect(lambda _: self._show_right())
        self.report.open_wanted.connect(lambda s: self.model_chosen.emit(s.report.candidate.path))
        self.report.compare_wanted.connect(self.compare_in_chat)
        self.report.export_wanted.connect(lambda stored: self.controller.ask_export([stored]))
        self.comparison.export_wanted.connect(self.controller.ask_export)
        self.report.delete_wanted.connect(lambda stored: self.controller.delete([stored]))
        escape = QShortcut(QKeySequence("Esc"), self.run_view)
        escape.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        escape.activated.connect(self.cancel)

    # For the window ----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Commands for the menus."""
        return [
            Command(
                "quantize.make", "Quantize model…", partial(self.show_tab, QUANTIZE), "Tune",
                icon="quantize", section="quantize",
            ),
            Command(
                "quantize.evaluate", "Evaluate quality…",
                partial(self.show_tab, EVALUATE), "Tune", section="quantize",
            ),
            Command(
                "quantize.reports", "Quality reports", partial(self.show_tab, REPORTS), "Tune",
                section="quantize",
            ),
            Command(
                "quantize.cancel", "Cancel job", self.cancel, "Tune", section="quantize",
                is_enabled=lambda: self.run is not None,
            ),
        ]  # fmt: skip

    def show_tab(self, tab: int) -> None:
        """Bring the page to the front with `tab`."""
        self.wants_front.emit()
        self.tabs.setCurrentIndex(tab)
        self._frame.forms.setFocus()
        self._frame.forms.focusNextPrevChild(True)

    def may_close(self, window: QWidget) -> bool:
        """Whether the window may close now. During a job it asks first (a preference)."""
        if not self._asks_to_leave():
            return True
        return self.leaving.may_close(self.run.title if self.run is not None else "", window)

    def close_down(self, timeout_s: float) -> None:
        """Stop the job and remove deleted reports, as the program ends."""
        if self.run is not None:
            self.run.stop(timeout_s)
            self.run = None
        self.controller.deletion.close()

    def renew_models(self) -> None:
        """Update the offered models."""
        known = self._known()
        for field in (self.recipe.fields.source, self.evaluate.candidate.model,
                      self.evaluate.reference.model):  # fmt: skip
            field.set_known(known)

    def _propose(self) -> None:
        """Preselect the open model in empty fields."""
        path = self._current()
        if not path or not Path(path).is_dir():
            return
        for field in (self.recipe.fields.source, self.evaluate.candidate.model):
            if not field.path:
                field.choose(path)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.renew_models()
        self._propose()
        self.controller.reload()
        self.ending = None
        self.seen.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.seen.emit()

    # Runs --------------------------------------------------------------------------------------

    def start_quantizing(self) -> None:
        if self.run is None and self.recipe.can_start:
            plan = self.recipe.plan
            evaluation = self._evaluation_of(plan) if self.recipe.measure.isChecked() else None
            self.quantize_panel.show_error("")
            self._start(Run(plan, evaluation, self._threads(), self))

    def start_evaluating(self) -> None:
        if self.run is None and self.evaluate.can_start:
            self.evaluate_panel.show_error("")
            self._start(Run(None, self.evaluate.plan, parent=self))

    def cancel(self) -> None:
        """Cancel the job; an unfinished result is discarded."""
        if self.run is not None:
            self.run.cancel()

    def _evaluation_of(self, plan: QuantizePlan) -> EvaluationPlan:
        """Evaluation of the new model against its source."""
        return EvaluationPlan(
            ModelChoice(plan.output), ModelChoice(plan.source), self.recipe.measure_text.choice
        )

    def _start(self, run: Run) -> None:
        self.run = run
        self.ending = None
        run.moved.connect(self._on_moved)
        run.made.connect(self._on_made)
        run.measured.connect(self._on_measured)
        run.ended.connect(self._on_ended)
        run.start()
        self._offer()
        self._show_right()
        if self.run_view.isVisible():
            self.run_view.cancel.setFocus()  # the pressed button is disabled now
        self.commands_changed.emit()

    def _on_moved(self) -> None:
        if self.run is not None:
            if self.isVisible():
                self.run_view.show_run(self.run)
            self.run_moved.emit()

    def _on_made(self, result: QuantizeResult) -> None:
        run = self.run
        assert run is not None and run.quantize is not None
        self._made_plan = run.quantize
        self.made.show_result(result)
        facts = self.recipe.facts
        if facts is not None and facts.path == run.quantize.source and result.seconds > 0:
            work = work_of(facts, result.recipe, result.num_tokens)
            self.rate_measured.emit(result.recipe.method, work / result.seconds)
        self.model_made.emit(str(result.output))
        self.renew_models()
        self.recipe.forget_output()

    def _on_measured(self, report: EvaluationReport) -> None:
        run = self.run
        assert run is not None and run.evaluate is not None
        commands = [evaluate_command(run.evaluate)]
        if run.quantize is not None:
            commands.insert(0, quantize_command(run.quantize))
        stored = self.controller.keep(report, tuple(commands))
        if stored is not None:
            self.tabs.setCurrentIndex(REPORTS)
            self.reports.choose(stored.id)

    def _on_ended(self, outcome: Outcome) -> None:
        run, self.run = self.run, None
        assert run is not None
        self.run_view.rest()
        panel = self.quantize_panel if run.quantize is not None else self.evaluate_panel
        if outcome.error is not None:
            text = f"{outcome.error.cause} {outcome.error.remedy}".strip()
            panel.show_error(text)
            self.ending = (text, True)
        elif outcome.was_cancelled:
            panel.show_error("")
            kept = (
                "No model was saved."
                if run.result is None
                else "The model was saved but not evaluated."
            )
            self.toast.show_message(f"Cancelled. {kept}")
        else:
            self.ending = (f"{run.title}: finished in {elapsed(run.seconds)}.", False)
        if self.isVisible():  # the user saw it
            self.ending = None
        self._shows_made = run.result is not None and run.report is None
        run.deleteLater()
        self._offer()
        self._show_right()
        self.run_over.emit()
        self.commands_changed.emit()

    def _measure_made(self) -> None:
        """Evaluate the last quantized model against its source."""
        plan = self._made_plan
        if plan is not None and self.run is None:
            self._start(Run(None, self._evaluation_of(plan), parent=self))

    # Showing -----------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Update buttons and summaries below the forms."""
        busy = "" if self.run is None else "One job at a time"
        recipe, evaluate = self.recipe, self.evaluate
        command = quantize_command(recipe.plan) if recipe.facts is not None else ""
        self.quantize_panel.offer(self.run is None and recipe.can_start, command)
        self.quantize_panel.say(*recipe.summary(), busy)
        has_model = bool(evaluate.candidate.model.path)
        command = evaluate_command(evaluate.plan) if has_model and evaluate.can_start else ""
        self.evaluate_panel.offer(self.run is None and evaluate.can_start, command)
        self.evaluate_panel.say(why=busy)

    def _show_right(self) -> None:
        """Show the job, its result, the selected reports, or a hint."""
        tab, chosen = self.tabs.currentIndex(), self.reports.selection
        shown: QWidget | None = None
        if tab == REPORTS and len(chosen) > 1:
            shown = self.comparison
            self.comparison.show_reports(chosen)
        elif tab == REPORTS and chosen:
            shown = self.report
            self.report.show_report(chosen[0], self.controller.made(chosen[0]))
        elif tab != REPORTS and self.run is not None:
            shown = self.run_view
            self.run_view.show_run(self.run)
        elif tab == QUANTIZE and self._shows_made:
            shown = self.made
        if shown is None:
            self._right.show_hint(HINTS[tab])
        else:
            self._right.setCurrentWidget(shown)
