"""A stored comparison, broadcast or job of Bench, or a failed run: verdict, figures, replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QStackedWidget, QWidget

from app.bench import ladder_record
from app.features.compare.broadcast_view import ReplyGrid
from app.features.compare.columns import Columns, PromptTable
from app.features.compare.record import Comparison
from app.features.compare.replies import Reply
from app.features.compare.stored import comparison_of, replies_of
from app.features.quantize.reports import when
from app.features.runs.difference import difference
from app.features.runs.difference_view import DifferenceGrid
from app.features.runs.forms import FORMS
from app.features.runs.ladder_figures import LadderFigures
from app.features.runs.verdicts import verdict
from app.storage.run_records import Kind, RunRecord
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import button, hbox, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, ui_font

Continue = Callable[[Reply, Any, str], None]
BENCHES = (Kind.BENCH, Kind.LADDER)
"""The runs of the Bench page."""
BODY = 240
"""Least height of replies or a ladder at the default text size: below it, the whole run scrolls."""


class StoredView(QFrame):
    """`again_wanted(RunRecord)`: repeat it with other settings; `bench_wanted(RunRecord)`: show all
    its points."""

    again_wanted = Signal(object)
    bench_wanted = Signal(object)

    def __init__(self, continue_chat: Continue) -> None:
        """`continue_chat(reply, side, model)` continues a reply as a chat."""
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("Run")
        self._continue_chat = continue_chat
        self._run: RunRecord | None = None
        self._comparison: Comparison | None = None
        self.title, self.about = title_line(hugs=False), ElidedLine("text_muted")
        self.verdict = wrapped()
        self.verdict.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.table = DifferenceGrid("Run metrics")
        self.again = button(
            "Run again…", lambda: self.again_wanted.emit(self._run),
            "Open the form with this run's settings",
        )
        self.bench = button("Open in Bench", lambda: self.bench_wanted.emit(self._run),
                            "Table and curves of all points")  # fmt: skip
        self.prompts, self.columns = PromptTable(), Columns()
        self.prompts.chosen.connect(self._show_pair)
        self.columns.continued.connect(self._on_continue)
        self.grid = ReplyGrid(self._on_reply)
        self._body = QStackedWidget()
        pairs = QWidget()
        vbox(self.prompts, (self.columns, 1), of=pairs)
        self._pairs, self.ladder, self._rest = pairs, LadderFigures(), QWidget()
        for widget in (pairs, self.grid, self.ladder):
            self._body.addWidget(widget)
        content = QWidget()
        content.setProperty("bare", True)
        vbox(
            self.about, self.verdict, self.table, SPACE_2, (self._body, 1), (self._rest, 1),
            of=content, margins=(0, 0, SPACE_2, 0),
        )  # fmt: skip
        self.area = scroll_area(content, "Run")
        scroll_by_keys(self.area)
        head = hbox((self.title, 1), self.again, self.bench)
        margins = (SPACE_4, SPACE_3, SPACE_2, SPACE_3)
        vbox(head, (self.area, 1), of=self, margins=margins)

    def show_run(self, run: RunRecord) -> None:
        self._run, self._comparison = run, None
        self.title.set_text(f"{run.kind.label}: {run.title}")
        self.again.setVisible(run.kind in FORMS)
        self.bench.setVisible(run.kind in BENCHES and bool(run.details))
        self.about.set_text(when(run.created))
        self.verdict.setText(verdict(run))
        try:
            body = self._show_details(run) if run.details else None
        except (KeyError, TypeError, ValueError) as error:
            body = None
            self.verdict.setText(f"The details of this run are damaged: {error!r}.")
        if body is not None:
            self._body.setCurrentWidget(body)
        self._body.setVisible(body is not None)  # else as high as the replies of other runs
        self._rest.setVisible(body is None)
        self._body.setMinimumHeight(scaled(BODY))
        self.table.show_difference(difference([run]))
        self.table.setVisible(bool(run.sides) and body is not self.ladder)  # which has its own
        self.area.verticalScrollBar().setValue(0)

    def _show_details(self, run: RunRecord) -> QWidget | None:
        """Replies or a ladder; None of other kinds. Raises KeyError, TypeError or ValueError for
        damaged details."""
        if run.kind is Kind.COMPARE:
            self._show_comparison(comparison_of(run))
            return self._pairs
        if run.kind is Kind.BROADCAST:
            self.grid.show_replies(replies_of(run))
            return self.grid
        if run.kind is Kind.LADDER:
            self.ladder.show_result(ladder_record.from_run(run))
            return self.ladder
        return None

    def _show_comparison(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.columns.show_comparison([side.title for side in comparison.sides], comparison)
        self.prompts.clearSelection()
        self.prompts.show_pairs(comparison.pairs)
        self.prompts.setVisible(len(comparison.pairs) > 1)
        self._show_pair()

    def _show_pair(self) -> None:
        if self._comparison is not None:
            pairs, row = self._comparison.pairs, self.prompts.chosen_row
            self.columns.show_pair(pairs[row] if 0 <= row < len(pairs) else None)

    def _on_continue(self, reply: Reply, place: int) -> None:
        if self._comparison is not None:
            self._continue_chat(reply, self._comparison.sides[place], self._comparison.model)

    def _on_reply(self, reply: Reply) -> None:
        if self._run is not None:
            self._continue_chat(reply, None, self._run.model)
