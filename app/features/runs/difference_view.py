"""Runs side by side: the verdict, and a table of every quantity."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import QFrame, QLabel, QWidget

from app.features.quantize.figures import Cell, FigureGrid
from app.features.runs.difference import Difference, difference
from app.features.runs.verdicts import NOT_RECORDED, of_difference
from app.storage.run_records import RunRecord
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, ui_font

_LABEL_WIDTH = 60


class DifferenceGrid(FigureGrid):
    """Values are plain; a clear change has the colour of better or worse."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _LABEL_WIDTH)

    def show_difference(self, found: Difference) -> None:
        rows = []
        for row in found.rows:
            cells = [Cell(row.metric.label, "muted")]
            for at, text in enumerate(row.texts()):
                place, is_change = (at + 1) // 2, at > 0 and at % 2 == 0
                cells.append(Cell(text, row.tone(place) or "muted") if is_change else Cell(text))
            rows.append(cells)
        self.show_rows(found.heads, rows)


def has_no_spread(found: Difference) -> bool:
    """Whether a report has a speed without its spread, as by older versions."""
    return any(
        value is not None and not value.samples
        for row in found.rows if row.metric.unit == "tokens/s" and row.metric.path
        for value in row.values
    )  # fmt: skip


class DifferenceView(QFrame):
    """Several runs. `export_wanted(Difference)` when its button is pressed."""

    export_wanted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("Difference of runs")
        self.found: Difference | None = None
        self.title = QLabel()
        self.title.setProperty("role", "title")
        self.verdict = wrapped()
        self.verdict.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.cautions = wrapped("warning")
        self.table = DifferenceGrid("Metrics of all runs")
        self.copy = button("Copy", self.copy_table, "Copy as Markdown table")
        self.export = button(
            "Export…", lambda: self.export_wanted.emit(self.found), "CSV or Markdown"
        )
        content = QWidget()
        content.setProperty("bare", True)
        vbox(
            self.verdict, self.cautions, self.table, STRETCH,
            of=content, spacing=SPACE_3, margins=(0, 0, SPACE_2, 0),
        )  # fmt: skip
        area = scroll_area(content, "Difference")
        # wider than the window where many are compared
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        scroll_by_keys(area)
        head = hbox((self.title, 1), self.copy, self.export)
        margins = (SPACE_4, SPACE_3, SPACE_2, SPACE_3)
        vbox(head, (area, 1), of=self, spacing=SPACE_3, margins=margins)

    def show_runs(self, runs: Sequence[RunRecord], cautions: Sequence[str]) -> None:
        """Two or more; the oldest is the baseline."""
        found = self.found = difference(runs, cautions)
        self.title.setText(f"Difference of {len(runs)} runs")
        self.verdict.setText(of_difference(found))
        self.verdict.setVisible(bool(self.verdict.text()))
        notes = [*found.cautions]
        if has_no_spread(found):
            notes.append(f"Some speeds have no 95 % interval: {NOT_RECORDED}.")
        self.cautions.setText("\n".join(notes))
        self.cautions.setVisible(bool(notes))
        self.table.show_difference(found)

    def copy_table(self) -> None:
        if self.found is not None:
            QGuiApplication.clipboard().setText(self.found.as_markdown())
