"""The figures of two ranges, a metric a line.

        p50                  p99                 samples
        A    B    change     A    B    change    A    B
TTFT    84   151  +80 %      120  –    –         212  64
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.tune.comparison import METRICS, Metric, Row, change_text, tone, value_text
from app.tune.history import Figures
from widgets.charts.percentiles import FEWEST_FOR_P99
from widgets.charts.scale import number
from widgets.theme import SPACE_1, SPACE_3, SPACE_6, figure_font, restyle, theme_notifier

_GROUPS = (("p50", 3), ("p99", 3), ("samples", 2))
_HEADS = ("A", "B", "change", "A", "B", "change", "A", "B")
MOST_WIDTH = 900
_GAPS = (2, 6, 10)
"""Columns that are only distance, in front of each group."""


def _column(index: int) -> int:
    """The grid's column of the value number `index`."""
    return 3 + index + (index > 2) + (index > 5)


class CompareTable(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Figures of both ranges")
        self.cells: dict[str, list[QLabel]] = {}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, SPACE_1, 0)
        self._grid.setHorizontalSpacing(SPACE_3)
        self._grid.setVerticalSpacing(1)
        self._make_heads()
        for line, metric in enumerate(METRICS, 2):
            self._make_line(line, metric)
        for gap in _GAPS:
            self._grid.setColumnMinimumWidth(gap, SPACE_6 - SPACE_3)
        self.setMaximumWidth(MOST_WIDTH)
        for index in range(len(_HEADS)):
            self._grid.setColumnStretch(_column(index), 1)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _make_heads(self) -> None:
        first = 0
        for text, width in _GROUPS:
            label = _small(text)
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            columns = _column(first + width - 1) - _column(first) + 1
            self._grid.addWidget(label, 0, _column(first), 1, columns)
            first += width
        for index, text in enumerate(_HEADS):
            self._grid.addWidget(_small(text), 1, _column(index))

    def _make_line(self, line: int, metric: Metric) -> None:
        name, unit = QLabel(metric.label), QLabel(metric.unit)
        name.setToolTip(metric.tip)
        unit.setProperty("role", "small")
        self._grid.addWidget(name, line, 0)
        self._grid.addWidget(unit, line, 1)
        cells = [QLabel() for _ in _HEADS]
        for index, cell in enumerate(cells):
            cell.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            cell.setAccessibleName(f"{metric.label} {_group(index)} {_HEADS[index]}")
            self._grid.addWidget(cell, line, _column(index))
        self.cells[metric.key] = cells

    def _take_fonts(self) -> None:
        for cells in self.cells.values():
            for index, cell in enumerate(cells):
                is_change = _HEADS[index] == "change"
                weight = QFont.Weight.DemiBold if is_change else QFont.Weight.Normal
                cell.setFont(figure_font("body", weight))

    def show_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            metric, a, b = row.metric, row.a, row.b
            texts = (
                value_text(a.p50), value_text(b.p50), change_text(row.p50_change),
                value_text(a.p99), value_text(b.p99), change_text(row.p99_change),
                number(a.num_samples, 0), number(b.num_samples, 0),
            )  # fmt: skip
            cells = self.cells[metric.key]
            for cell, text in zip(cells, texts, strict=True):
                if cell.text() != text:
                    cell.setText(text)
            for index, percent in ((2, row.p50_change), (5, row.p99_change)):
                role = tone(metric, percent)
                if cells[index].property("role") != role:
                    restyle(cells[index], role=role)
                words = {"better": "Better", "worse": "Worse"}.get(role, "")
                cells[index].setToolTip(words)
            for index, figures in ((3, a), (4, b)):
                cells[index].setToolTip(_why_no_p99(figures))


def _small(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("role", "small")
    label.setAlignment(Qt.AlignmentFlag.AlignRight)
    return label


def _group(index: int) -> str:
    return "p50" if index < 3 else "p99" if index < 6 else "samples"


def _why_no_p99(figures: Figures) -> str:
    if figures.p99 is not None or figures.largest is None:
        return ""
    return (
        f"{figures.num_samples} samples have no 99th percentile ({FEWEST_FOR_P99} would); their "
        f"largest is {value_text(figures.largest)}"
    )
