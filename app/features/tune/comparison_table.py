"""`CompareTable`: the figures of two ranges, a metric a line; only groups that fit are shown.
The level of throughput is its mean, and its title says so.

        p50                  p99                 samples
        A    B    change     A    B    change    A    B
TTFT    84   151  +80 %      120  –    –         212  64
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QGridLayout, QLabel, QSizePolicy, QWidget

from app.features.tune.comparison import BETTER, Row, title_of, tone, values_of
from engine.snapshot.metrics import METRICS, Metric
from engine.units import figure
from widgets.controls.layouts import dressed
from widgets.live.figures import reservations
from widgets.live.statistics import Figures
from widgets.plot.series import FEWEST_FOR_P99
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_3, SPACE_6, figure_font, restyle, theme_notifier

_GROUPS = {"p50": (3, 4, 5), "p99": (7, 8, 9), "samples": (11, 12)}
"""The grid's columns of each group; a spacer is before each."""
_COLUMNS = [(column, group) for group, columns in _GROUPS.items() for column in columns]
_HEADS = ("A", "B", "change", "A", "B", "change", "A", "B")
_CHANGES = (2, 5)
MOST_WIDTH = 900
"""Pixels at 100 % text."""


class CompareTable(QWidget):
    """`num_shown`: how many of its groups fit."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Metrics of ranges A and B")
        self.cells: dict[str, list[QLabel]] = {}
        self.num_shown = len(_GROUPS)
        self._headings: list[QLabel] = []  # of the groups
        self._by_column: dict[int, list[QLabel]] = {}
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, SPACE_1, 0)
        self._grid.setHorizontalSpacing(0)  # the grid spaces hidden columns too: the cells do it
        self._grid.setVerticalSpacing(1)
        for group, columns in _GROUPS.items():
            label = _small(group, Qt.AlignmentFlag.AlignHCenter)
            label.setContentsMargins(SPACE_3, 0, 0, 0)
            self._headings.append(label)
            self._grid.addWidget(label, 0, columns[0], 1, len(columns))
            self._grid.setColumnMinimumWidth(columns[0] - 1, SPACE_6)
        for (column, _), text in zip(_COLUMNS, _HEADS, strict=True):
            self._add(_small(text, Qt.AlignmentFlag.AlignRight), 1, column)
            self._grid.setColumnStretch(column, 1)
        for line, key in enumerate(BETTER, 2):
            self._make_line(line, METRICS[key])
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _add(self, label: QLabel, line: int, column: int) -> None:
        label.setContentsMargins(SPACE_3 if column else 0, 0, 0, 0)
        self._grid.addWidget(label, line, column)
        self._by_column.setdefault(column, []).append(label)

    def _make_line(self, line: int, metric: Metric) -> None:
        self._add(dressed(QLabel(title_of(metric)), tip=metric.description), line, 0)
        self._add(dressed(QLabel(metric.unit), role="small"), line, 1)
        cells = self.cells.setdefault(metric.key, [])
        for (column, group), head in zip(_COLUMNS, _HEADS, strict=True):
            cell = dressed(QLabel(), f"{title_of(metric)} {group} {head}")
            cell.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self._add(cell, line, column)
            cells.append(cell)

    def _take_fonts(self) -> None:
        for cells in self.cells.values():
            for index, cell in enumerate(cells):
                weight = QFont.Weight.DemiBold if index in _CHANGES else QFont.Weight.Normal
                cell.setFont(figure_font("body", weight))

    def fit(self, room: int) -> bool:
        """Show the first groups that fit in `room` pixels without cutting a cell: a number that
        lost digits is another number. False if not even the first one fits."""
        self.setMaximumWidth(scaled(MOST_WIDTH))
        needed, shown = self._width_of((0, 1)) + SPACE_1, 0
        for heading, columns in zip(self._headings, _GROUPS.values(), strict=True):
            widths = self._width_of(columns), heading.sizeHint().width()
            needed += SPACE_6 + max(widths)
            if needed > min(room, self.maximumWidth()):
                break
            shown += 1
        if shown != self.num_shown:
            self.num_shown = shown
            self._show_groups()
        return shown > 0

    def _width_of(self, columns: Sequence[int]) -> int:
        """Of neighbouring columns, as wide as their widest cells."""
        cells = (self._by_column[column] for column in columns)
        return sum(max(cell.sizeHint().width() for cell in one) for one in cells)

    def _show_groups(self) -> None:
        groups = zip(self._headings, _GROUPS.values(), strict=True)
        for index, (heading, columns) in enumerate(groups):
            is_shown = index < self.num_shown
            heading.setVisible(is_shown)
            self._grid.setColumnMinimumWidth(columns[0] - 1, SPACE_6 if is_shown else 0)
            for column in columns:
                self._grid.setColumnStretch(column, int(is_shown))
                for cell in self._by_column[column]:
                    cell.setVisible(is_shown)

    def show_rows(self, rows: Sequence[Row], claimed: Collection[str]) -> None:
        """claimed: the metrics whose change is more than their spread."""
        for row in rows:
            cells = self.cells[row.metric.key]
            for cell, text in zip(cells, values_of(row), strict=True):
                if cell.text() != text:
                    cell.setText(text)
            for index, share in zip(_CHANGES, (row.level_change, row.p99_change), strict=True):
                role = tone(row.metric, share, row.metric.key in claimed)
                if cells[index].property("role") != role:
                    restyle(cells[index], role=role)
                cells[index].setToolTip(role.capitalize())
            for index, figures in ((3, row.a), (4, row.b)):
                cells[index].setToolTip(_why_no_p99(figures))
            for index, figures in ((6, row.a), (7, row.b)):
                is_firm = not (figures.is_few or figures.is_busy_machine)
                role = "" if is_firm else "warning"
                if (cells[index].property("role") or "") != role:
                    restyle(cells[index], role=role)
                cells[index].setToolTip("" if is_firm else reservations(figures))


def _small(text: str, alignment: Qt.AlignmentFlag) -> QLabel:
    return dressed(QLabel(text, alignment=alignment), role="small")


def _why_no_p99(figures: Figures) -> str:
    if figures.p99 is not None or figures.largest is None:
        return ""
    return (
        f"p99 requires {FEWEST_FOR_P99} samples ({figures.num_samples} so far); maximum: "
        f"{figure(figures.largest)}"
    )
