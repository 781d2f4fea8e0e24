"""The Runs page: a table of all runs above the selected ones; a form for each new one.

+-----------------------------------------------+
| [New run]  kind, model     weights of the open |
| quantize  Qwen  AWQ  13:04  done  35 % ...     |
| compare   Qwen  ...               42 % ...     |
+-----------------------------------------------+
| verdict, figures, replies of the selected run, |
| or the difference of several                   |
+-----------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QMenu, QPushButton, QSplitter, QWidget

from app.features.compare.broadcast_view import BroadcastView
from app.features.compare.reply_view import PromptView
from app.features.compare.view import CompareView
from app.features.quantize.plan import QuantizePlan, work_of
from app.features.quantize.run import Run
from app.features.quantize.work import Outcome
from app.features.runs.book import RunBook
from app.features.runs.detail import Detail
from app.features.runs.forms import FORMS, TITLES, FormFrame, PageStack
from app.features.runs.job_forms import EvaluateJob, Offered, QuantizeJob
from app.features.runs.jobs import LIVE, Jobs
from app.features.runs.report_view import ReportView
from app.features.runs.stored_view import BENCHES, Continue, StoredView
from app.features.runs.table import RunsTable
from app.storage.report_store import ReportStore
from app.storage.run_records import Kind, RunRecord, State
from app.storage.run_store import RunStore
from app.storage.trash import Trash
from app.window.commands import Command
from app.window.leave_guard import LeaveGuard
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import STRETCH, hbox, vbox
from widgets.controls.notice import Toast
from widgets.theme.theme import SPACE_3

if TYPE_CHECKING:
    from engine.quantize.recipe import QuantizeResult

LEAST_TABLE = 110
LOSS = "Closing stops the job and discards the result."


class RunsPage(QWidget):
    """`run_moved`, `run_over`: of the current job; `seen`: the page was shown or hidden.
    `model_chosen(path)` to open a model, `compare_in_chat(report)`, `bench_wanted(RunRecord)` to
    show it on the Bench page; `model_made(path)`.
    `commands_changed`: the state of a command may have changed. `models_changed`: the models
    to choose from have. `program_ends`: the window closes."""

    run_moved = Signal()
    run_over = Signal()
    seen = Signal()
    commands_changed = Signal()
    models_changed = Signal()
    model_chosen = Signal(str)
    model_made = Signal(str)
    compare_in_chat = Signal(object)
    bench_wanted = Signal(object)
    rate_measured = Signal(str, float)  # method, units of work a second
    wants_front = Signal()
    program_ends = Signal()

    def __init__(
        self,
        stores: tuple[ReportStore, RunStore],
        trash: Trash,
        compare: Callable[[], CompareView],
        broadcast: Callable[[], BroadcastView],
        precision: QWidget,
        continue_chat: Continue,
        offered: Offered,
        threads: Callable[[], int | None],
        asks_to_leave: Callable[[], bool],
    ) -> None:
        """`compare`, `broadcast` make their views. `asks_to_leave`: whether closing the window
        during a run asks first."""
        super().__init__()
        self._make_compare, self._make_broadcast = compare, broadcast
        self.precision = precision
        self.toast = Toast(self)
        self.book = RunBook(*stores, trash, self.toast, self)
        self.jobs = Jobs(self.book, threads, self)
        self.leaving = LeaveGuard(asks_to_leave, self.jobs.cancel, LOSS, self)
        self._offered = offered
        self.table = RunsTable()
        self.detail = Detail(self.book, continue_chat)
        self._arrange()
        self._connect()

    @property
    def run(self) -> Run | None:
        """The running job."""
        return self.jobs.run

    # Building -----------------------------------------------------------------------------------

    def _arrange(self) -> None:
        self.new = QPushButton("New run")
        self.new.setProperty("kind", "primary")
        menu = QMenu(self.new)
        for kind in FORMS:
            menu.addAction(f"{TITLES[kind]}…", partial(self.show_form, kind))
        self.new.setMenu(menu)
        upper = QFrame()
        upper.setProperty("panel", True)
        head = hbox(self.new, self.table.filters, STRETCH)
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(head, self.precision, (self.table, 1), of=upper, margins=margins)
        self.table.view.setMinimumHeight(LEAST_TABLE)
        split = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        split.addWidget(upper)
        split.addWidget(self.detail)
        split.setStretchFactor(0, 2)
        split.setStretchFactor(1, 3)
        self._stack = PageStack()
        self._stack.addWidget(split)
        vbox(self._stack, of=self)

    # The forms are made when first needed: a fifth of the window's widgets, which all cost time
    # whenever theme or text size change.

    @cached_property
    def quantizing(self) -> QuantizeJob:
        made = QuantizeJob(self.jobs, self._offered)
        self._add(Kind.QUANTIZE, made.panel)
        self.models_changed.connect(made.renew_models)
        return made

    @cached_property
    def evaluating(self) -> EvaluateJob:
        made = EvaluateJob(self.jobs, self._offered)
        self._add(Kind.EVALUATE, made.panel)
        self.models_changed.connect(made.renew_models)
        return made

    @cached_property
    def compare(self) -> CompareView:
        made = self._make_compare()
        self._add(Kind.COMPARE, made)
        return made

    @cached_property
    def broadcast(self) -> BroadcastView:
        made = self._make_broadcast()
        self._add(Kind.BROADCAST, made)
        return made

    def _form(self, kind: Kind) -> QWidget:
        if kind is Kind.QUANTIZE:
            return self.quantizing.panel
        if kind is Kind.EVALUATE:
            return self.evaluating.panel
        return self.compare if kind is Kind.COMPARE else self.broadcast

    def _add(self, kind: Kind, form: QWidget) -> None:
        FormFrame(kind, form, self.show_table, self._stack)

    def _connect(self) -> None:
        jobs, book, table, detail = self.jobs, self.book, self.table, self.detail
        jobs.begun.connect(self._on_begun)
        jobs.moved.connect(self._on_moved)
        jobs.made.connect(self._on_made)
        jobs.kept.connect(lambda run: self.table.choose(run))
        jobs.ended.connect(self._on_ended)
        book.changed.connect(lambda: table.show_runs(book.runs, book.problems))
        book.progressed.connect(table.model.show_progress)
        table.chosen.connect(self._show_chosen)
        table.renamed.connect(book.rename)
        table.delete_wanted.connect(book.delete)
        table.opened.connect(self._on_opened)
        detail.run_view.cancel_wanted.connect(jobs.cancel)
        detail.made.open_wanted.connect(self.model_chosen)
        detail.made.measure_wanted.connect(self._measure_made)
        detail.report_made.connect(self._connect_report)
        detail.stored_made.connect(self._connect_stored)
        detail.difference.export_wanted.connect(
            lambda found: book.ask_export_difference(found, self.window())
        )
        LocalKeys(detail.run_view, {"Esc": jobs.cancel})

    def _connect_report(self, report: ReportView) -> None:
        book = self.book
        report.open_wanted.connect(lambda s: self.model_chosen.emit(s.report.candidate.path))
        report.compare_wanted.connect(self.compare_in_chat)
        report.export_wanted.connect(lambda s: book.ask_export_report(s, self.window()))

    def _connect_stored(self, stored: StoredView) -> None:
        stored.again_wanted.connect(lambda run: self.show_form(run.kind))
        stored.bench_wanted.connect(self.bench_wanted)

    # For the window -----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Commands for the menus."""
        show = lambda kind: partial(self.show_form, kind)
        return [
            Command("quantize.make", "Quantize model…", show(Kind.QUANTIZE), "Tune",
                    icon="quantize", section="quantize"),
            Command("quantize.evaluate", "Evaluate quality…", show(Kind.EVALUATE), "Tune",
                    section="quantize"),
            Command("chat.compare", "Compare side by side…", show(Kind.COMPARE), "Chat",
                    "Ctrl+Alt+P", "compare", section="reply"),
            Command("chat.broadcast", "Broadcast a prompt…", show(Kind.BROADCAST), "Chat",
                    "Ctrl+Alt+B", "branch", section="reply"),
            Command("quantize.reports", "Runs and reports", self.show_table, "Tune",
                    section="quantize"),
            Command("quantize.cancel", "Cancel job", self.jobs.cancel, "Tune", section="quantize",
                    is_enabled=lambda: self.run is not None),
        ]  # fmt: skip

    def show_form(self, kind: Kind) -> None:
        """Bring the page to the front with the form of a new run."""
        self.wants_front.emit()
        form = self._form(kind)
        frame = form.parentWidget()
        assert frame is not None
        self._stack.setCurrentWidget(frame)
        if isinstance(form, PromptView):
            form.prompt.setFocus()
        else:
            frame.setFocus()
            frame.focusNextPrevChild(True)

    def show_prompt(self, text: str) -> None:
        """Compare both sides with a prompt from elsewhere."""
        self.show_form(Kind.COMPARE)
        if text:
            self.compare.prompt.setPlainText(text)

    def show_table(self) -> None:
        self.wants_front.emit()
        self._stack.setCurrentIndex(0)
        self.table.view.setFocus()

    def may_close(self, window: QWidget) -> bool:
        """Whether the window may close now. During a job it asks first (a preference)."""
        return self.leaving.may_close(self.run.title if self.run is not None else "", window)

    def close_down(self, timeout_s: float) -> None:
        """Stop the job, write results and remove deleted runs, as the program ends."""
        self.jobs.stop(timeout_s)
        self.book.close(timeout_s)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.book.reload()
        self.jobs.ending = None
        self.seen.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.seen.emit()

    # Jobs ---------------------------------------------------------------------------------------

    def _on_begun(self) -> None:
        self._stack.setCurrentIndex(0)
        self.table.choose(LIVE)
        if self.detail.run_view.isVisible():
            self.detail.run_view.cancel.setFocus()  # the pressed button is hidden now
        self.commands_changed.emit()

    def _on_moved(self) -> None:
        run = self.run
        if run is not None:
            if self.detail.run_view.isVisible():
                self.detail.run_view.show_run(run)
            self.run_moved.emit()

    def _on_made(self, plan: QuantizePlan, result: QuantizeResult) -> None:
        recipe = self.quantizing.form
        facts = recipe.facts
        if facts is not None and facts.path == plan.source and result.seconds > 0:
            work = work_of(facts, result.recipe, result.num_tokens)
            self.rate_measured.emit(result.recipe.method, work / result.seconds)
        self.model_made.emit(str(result.output))
        self.models_changed.emit()
        recipe.forget_output()

    def _on_ended(self, run: Run, outcome: Outcome) -> None:
        if outcome.error is not None:
            form = self.quantizing if run.quantize is not None else self.evaluating
            form.show_error(outcome.error)
        if outcome.was_cancelled:
            kept = "The model was saved but not evaluated." if run.result else "No model was saved."
            self.toast.show_message(f"Cancelled. {kept}")
        if self.isVisible():  # the user saw it
            self.jobs.ending = None
        self._show_chosen()
        self.run_over.emit()
        self.commands_changed.emit()

    def _measure_made(self) -> None:
        chosen = self.table.selection
        if len(chosen) == 1 and chosen[0].kind is Kind.QUANTIZE:
            self.quantizing.measure(chosen[0].details["output"], chosen[0].details["source"])

    # Showing ------------------------------------------------------------------------------------

    def _show_chosen(self) -> None:
        self.detail.show_runs(self.table.selection, self.run)

    def _on_opened(self, run: RunRecord) -> None:
        if run.kind in (Kind.COMPARE, Kind.BROADCAST) and run.cause:
            self.show_form(run.kind)
        elif run.kind in BENCHES and run.details and run.state is not State.RUNNING:
            self.bench_wanted.emit(run)
