"""The selected runs: a running job, a new model, a report, stored replies, or a difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame

from app.features.quantize.results import MadeView, RunView
from app.features.quantize.run import Run
from app.features.runs.book import Content, RunBook
from app.features.runs.difference_view import DifferenceView
from app.features.runs.forms import PageStack
from app.features.runs.records import result_of
from app.features.runs.report_view import ReportView
from app.features.runs.stored_view import Continue, StoredView
from app.storage.report_metrics import cautions
from app.storage.run_records import Kind, RunRecord, State
from engine.quantize.recipe import QuantizeResult
from widgets.controls.layouts import vbox, wrapped
from widgets.theme.theme import SPACE_4

HINT = (
    "Select a run to see its metrics and replies. “New run” quantizes a model, evaluates its "
    "quality, compares two sides, or broadcasts a prompt."
)
PROMPTING = "In progress. Press Return to see the replies."


class Detail(PageStack):
    """Shows one view at a time. The large ones are made when first needed."""

    report_made = Signal(object)
    stored_made = Signal(object)

    def __init__(self, book: RunBook, continue_chat: Continue) -> None:
        super().__init__()
        self._continue_chat = continue_chat
        self._book = book
        self._wanted: list[RunRecord] = []
        self.run_view, self.made = RunView(), MadeView()
        self.difference = DifferenceView()
        self.hint = wrapped("muted")
        self.hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty = QFrame()
        self._empty.setProperty("panel", True)
        wide = 2 * SPACE_4
        vbox(self.hint, of=self._empty, margins=(wide, wide, wide, wide))
        for view in (self._empty, self.run_view, self.made, self.difference):
            self.addWidget(view)

    @cached_property
    def report(self) -> ReportView:
        made = ReportView()
        self.addWidget(made)
        self.report_made.emit(made)
        return made

    @cached_property
    def stored(self) -> StoredView:
        made = StoredView(self._continue_chat)
        self.addWidget(made)
        self.stored_made.emit(made)
        return made

    def show_runs(self, runs: Sequence[RunRecord], job: Run | None) -> None:
        """`job`: the running one. Stored ones are read first."""
        wanted = self._wanted = list(runs)

        def load(stored: Sequence[RunRecord], show: Callable[[list[Content]], None]) -> None:
            self._book.load(stored, lambda found: show(found) if self._wanted is wanted else None)

        if len(wanted) > 1:
            load([run for run in wanted if run.is_report],
                 lambda found: self._show_difference(wanted, found))  # fmt: skip
        elif not wanted:
            self._show_hint(HINT)
        elif wanted[0].state is State.RUNNING:
            self._show_running(wanted[0], job)
        else:
            load(wanted, lambda found: self._show_stored(*found))

    def _show_difference(self, runs: Sequence[RunRecord], reports: Sequence[Content]) -> None:
        found = [content.report.report for content in reports if content.report is not None]
        self.difference.show_runs(runs, cautions(found))
        self.setCurrentWidget(self.difference)

    def _show_running(self, run: RunRecord, job: Run | None) -> None:
        if job is not None and run.kind in _JOBS:
            self.run_view.show_run(job)
            self.setCurrentWidget(self.run_view)
        else:
            self._show_hint(f"{run.kind.label}: {run.cause}. {PROMPTING}")

    def _show_stored(self, content: Content) -> None:
        run, stored, made = content
        if stored is not None:
            self.report.show_report(stored, made)
            self.setCurrentWidget(self.report)
        elif run.kind is Kind.QUANTIZE and (result := _result(run)) is not None:
            self.made.show_result(result)
            self.setCurrentWidget(self.made)
        else:
            self.stored.show_run(run)
            self.setCurrentWidget(self.stored)

    def _show_hint(self, text: str) -> None:
        self.hint.setText(text)
        self.setCurrentWidget(self._empty)


def _result(run: RunRecord) -> QuantizeResult | None:
    """None where it failed, or its file was changed."""
    try:
        return result_of(run.details) if run.state is State.DONE else None
    except (ValueError, TypeError):
        return None


_JOBS = (Kind.QUANTIZE, Kind.EVALUATE)
