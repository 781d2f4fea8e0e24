"""The errors of the layers: a chart, what is pointed at, and the same as a table."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.quantize.layers import LayerRow, caption, in_words
from app.quantize.tiles import percent
from widgets.elided_line import ElidedLine
from widgets.quality.layer_chart import NONE, LayerChart
from widgets.theme import SPACE_1, SPACE_2, figure_font

HEADERS = ("Layer", "Error", "Plain rounding", "Worst matrix", "Its error", "Seconds", "Notes")
CHART_HEIGHT = 190


class LayersPanel(QWidget):
    """Shows rows; `num_layers` of them are to come while it runs."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[LayerRow] = []
        title = QLabel("Layers")
        title.setProperty("role", "title")
        self._line = ElidedLine("text_muted")
        self._sum = ElidedLine("text")
        self.toggle = QPushButton("Table")
        self.toggle.setProperty("kind", "flat")
        self.toggle.setCheckable(True)
        self.toggle.setToolTip("The values as a table")
        self.toggle.setAccessibleName("Show the layers as a table")
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(title)
        head.addWidget(self._line, 1)
        head.addWidget(self.toggle)
        self.chart = LayerChart()
        self.table = _table()
        self._stack = QStackedWidget()
        self._stack.addWidget(self.chart)
        self._stack.addWidget(self.table)
        self._stack.setMinimumHeight(CHART_HEIGHT)
        self.toggle.toggled.connect(lambda on: self._stack.setCurrentIndex(int(on)))
        self.chart.pointed.connect(self._on_pointed)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        column.addLayout(head)
        column.addWidget(self._sum)
        column.addWidget(self._stack, 1)

    def show_rows(self, rows: Sequence[LayerRow], num_layers: int = 0) -> None:
        """Show these, and room for the rest of `num_layers`."""
        new = len(rows) != len(self.rows) or list(rows) != self.rows
        self.rows = list(rows)
        self.chart.show_bars([row.bar for row in rows], num_layers)
        if new:
            self._fill_table()
        self._on_pointed(self.chart.pointed_bar)

    @property
    def words(self) -> str:
        return " · ".join(filter(None, (self._line.text(), self._sum.text())))

    def _on_pointed(self, index: int) -> None:
        """What the bars are of, and their sum; or the one that is pointed at."""
        self._line.set_text(caption(self.rows))
        self._sum.set_text(in_words(self.rows) if index == NONE else self.chart.text(index))

    def _fill_table(self) -> None:
        self.table.setRowCount(len(self.rows))
        for place, row in enumerate(self.rows):
            rounding = "–" if row.rounding is None else percent(row.rounding, 3)
            worst_error = percent(row.worst_error, 3)
            texts = (row.label, percent(row.error, 3), rounding, row.worst, worst_error,
                     f"{row.seconds:.2f}", row.notes)  # fmt: skip
            for column, text in enumerate(texts):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                if column not in (3, 6):
                    item.setFont(figure_font())
                    right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
                    item.setTextAlignment(right)
                self.table.setItem(place, column, item)


def _table() -> QTableWidget:
    table = QTableWidget(0, len(HEADERS))
    table.setHorizontalHeaderLabels(HEADERS)
    table.setAccessibleName("Errors of the layers")
    table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QTableWidget.SelectionBehavior.SelectRows)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    header = table.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setSectionResizeMode(len(HEADERS) - 1, QHeaderView.ResizeMode.Stretch)
    return table
