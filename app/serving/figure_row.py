"""Figures side by side, each under its name: as many in a row as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtGui import QFont, QResizeEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from widgets.theme import SPACE_2, SPACE_4, figure_font, restyle, theme_notifier

NOTHING = "–"


class Figure(NamedTuple):
    """`widest`: a text as wide as the figure may become; nothing moves when it does."""

    key: str
    label: str
    widest: str
    tip: str


class FigureRow(QWidget):
    def __init__(self, name: str, figures: Sequence[Figure], *, width: int = 104) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._width, self._columns = width, 0
        self._cells = {figure.key: _Cell(figure) for figure in figures}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_4)
        self._grid.setVerticalSpacing(SPACE_2)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._arrange(len(self._cells))

    def show_values(self, values: dict[str, str]) -> None:
        """Texts by key; what is not named has no value now."""
        for key, cell in self._cells.items():
            cell.show_value(values.get(key, NOTHING))

    def value(self, key: str) -> str:
        """What is shown."""
        return self._cells[key].value.text()

    def set_muted(self, is_muted: bool) -> None:
        """Whether the figures are old."""
        for cell in self._cells.values():
            restyle(cell.value, role="muted" if is_muted else "")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        count = len(self._cells)
        least = max(self._width, *(cell.minimumSizeHint().width() for cell in self._cells.values()))
        columns = max(1, min(count, (self.width() + SPACE_4) // (least + SPACE_4)))
        rows = -(-count // columns)
        self._arrange(-(-count // rows))  # rows of the same length

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        for column in range(max(columns, self._columns) + 1):
            self._grid.setColumnStretch(column, int(column < columns))
        self._columns = columns
        for place, cell in enumerate(self._cells.values()):
            self._grid.addWidget(cell, *divmod(place, columns))


class _Cell(QWidget):
    def __init__(self, figure: Figure) -> None:
        super().__init__()
        self._figure = figure
        self.setToolTip(figure.tip)
        label = QLabel(figure.label)
        label.setProperty("role", "small")
        self.value = QLabel(NOTHING)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(label)
        column.addWidget(self.value)
        theme_notifier().changed.connect(self._fit)
        self._fit()

    def show_value(self, text: str) -> None:
        if text != self.value.text():
            self.value.setText(text)
            self.setAccessibleName(f"{self._figure.label}: {text}")

    def _fit(self) -> None:
        self.value.setFont(figure_font("body", QFont.Weight.DemiBold))
        self.value.ensurePolished()
        self.value.setMinimumWidth(self.value.fontMetrics().horizontalAdvance(self._figure.widest))
