"""`StepState`: one step of the timeline in full: where its time went, and each of its requests."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
)

from app.features.inspect.step_breakdown import parts_of
from engine.snapshot import StepEntry, StepRecord
from engine.telemetry.step_cost import Split
from engine.units import duration_text, number, percent_text
from widgets.controls.buttons import IconButton
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import dressed, hbox, label, vbox, wrapped
from widgets.controls.tables import SmallFigures, dress_table
from widgets.plot.parts_bar import Part, PartsBar
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3
from widgets.timeline.table import step_text

_HEADINGS = ("Request", "Work", "Tokens")
_TOKENS, _RIGHT = 2, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
NO_PEAKS = "Measured host times. Peak bandwidth, once measured, splits the model's time."


class StepState(QFrame):
    """`closed`: choose no step; `request_wanted(request id)`: show this request."""

    closed = Signal()
    request_wanted = Signal(str)

    def __init__(
        self, name: Callable[[str], str], split: Callable[[StepRecord], Split | None]
    ) -> None:
        """`name`: of a request; `split(step)`: where its time went, None without peaks."""
        super().__init__()
        self.setAccessibleName("Selected step")
        self._name, self._split = name, split
        self._requests: list[str] = []
        self.title = label(role="title")
        close = IconButton("close", "Clear the selected step (Esc)", self.closed.emit)
        self.line, self.note = wrapped("small"), wrapped("small", NO_PEAKS)
        self.bar = PartsBar("Where the time went")
        self.table = QTableWidget(0, len(_HEADINGS))
        dress_table(self.table, "Requests of the step")
        SmallFigures(self.table)
        self.table.setHorizontalHeaderLabels(_HEADINGS)
        if (heading := self.table.horizontalHeaderItem(_TOKENS)) is not None:
            heading.setTextAlignment(_RIGHT)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.table.setToolTip("Double-click to show the request")
        self.table.cellActivated.connect(self._activate)
        self.table.setMinimumHeight(80)
        content = dressed(QFrame(), bare=True)
        vbox(
            self.line, self.bar, self.note, (self.table, 1),
            of=content, spacing=SPACE_2, margins=(0, 0, SPACE_2, 0),
        )  # fmt: skip
        vbox(
            hbox((self.title, 1), close), (scroll_area(content, "Selected step"), 1),
            of=self, spacing=SPACE_1, margins=(SPACE_3, SPACE_1, SPACE_1, SPACE_2),
        )  # fmt: skip

    def show_step(self, step: StepRecord) -> None:
        self.title.setText(f"Step {step.index:,}")
        self.line.setText(step_text(step).partition(" · ")[2])
        split = self._split(step)
        self.bar.show_parts(measured_parts(step) if split is None else parts_of(split))
        self.note.setVisible(split is None)
        rows = [(entry.request_id, *_work(entry)) for entry in step.entries]
        rows += [(request, "preempted", "") for request in step.preempted]
        rows += [(request, "idle slot (static batching)", "") for request in step.held_back]
        self._requests = [request for request, *_ in rows]
        self.table.setRowCount(len(rows))
        for row, (request, *texts) in enumerate(rows):
            for column, text in enumerate((self._name(request), *texts)):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                if column == _TOKENS:
                    item.setTextAlignment(_RIGHT)
                self.table.setItem(row, column, item)

    def _activate(self, row: int, column: int) -> None:
        self.request_wanted.emit(self._requests[row])


def _work(entry: StepEntry) -> tuple[str, str]:
    """What a request did in the step, and how many tokens it computed."""
    if entry.kind == "prefill":
        cached = f", {number(entry.num_cached_tokens)} cached" if entry.num_cached_tokens else ""
        return f"prefill{' (resumed)' if entry.is_resumed else ''}{cached}", number(
            entry.num_tokens
        )
    if entry.num_draft:
        return f"decode, {entry.num_accepted} of {entry.num_draft} draft tokens accepted", number(
            entry.num_tokens
        )
    return "decode", number(entry.num_tokens)


_LEAST = 1e-3  # of the step: a smaller part is none
_MEASURED = (
    ("Model", "weights", "model_s"), ("Sampling", "arithmetic", "sample_s"),
    ("Scheduling", "python", "schedule_s"), ("Output processing", "launch", "commit_s"),
    ("Drafting", "draft", "draft_s"),
)  # fmt: skip


def measured_parts(step: StepRecord) -> list[Part]:
    """The measured times of a step as shares of it."""
    whole = step.duration or 1.0
    return [
        Part(text, color, spent / whole, (duration_text(spent), percent_text(spent / whole)))
        for text, color, name in _MEASURED
        if (spent := getattr(step, name)) > _LEAST * whole
    ]
