"""Figures of a run: tiles of the leading ones, and tables of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QSizePolicy, QWidget

from widgets.controls.layouts import STRETCH, empty_layout, vbox, wrapped
from widgets.controls.lines import ElidedLine
from widgets.theme.fonts import text_scale
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font


class Tile(NamedTuple):
    """`tone`: "better", "worse" or "muted", of the note."""

    label: str
    value: str
    note: str = ""
    tone: str = "muted"
    tip: str = ""


def percent(share: float, decimals: int = 0) -> str:
    """ "97.8 %"."""
    return f"{100 * share:.{decimals}f}\u00a0%"


TILE_WIDTH = 190
LEAST_HEAD = 26
"""Characters of a column's title that are shown in the least room."""


class TileGrid(QWidget):
    """Tiles in rows of equal length that fill the width."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Key metrics")
        self._tiles: list[QFrame] = []
        self.rows: list[int] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACE_2)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self.setSizePolicy(policy)

    def show_tiles(self, tiles: Sequence[Tile]) -> None:
        empty_layout(self._grid)
        self._tiles = [_tile(tile) for tile in tiles]
        self.rows = []
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        most = max(1, int(self.width() / (TILE_WIDTH * text_scale())))
        rows = even_rows(len(self._tiles), most)
        if rows == self.rows:
            return
        for column in range(self._grid.columnCount()):
            self._grid.setColumnStretch(column, 0)
        self.rows = rows
        units, frames = math.lcm(*rows), iter(self._tiles)
        for row, count in enumerate(rows):
            span = units // count
            for place in range(count):
                self._grid.addWidget(next(frames), row, place * span, 1, span)
        for column in range(units):
            self._grid.setColumnStretch(column, 1)


def even_rows(count: int, most: int) -> list[int]:
    """Tiles per row: as few rows as possible, of lengths that differ by at most one (six where
    five fit: 3 + 3)."""
    num_rows = -(-count // most)
    each, more = divmod(count, max(1, num_rows))
    return [each + (row < more) for row in range(num_rows)]


def _tile(tile: Tile) -> QFrame:
    frame = QFrame()
    frame.setProperty("notice", "info")
    frame.setToolTip(tile.tip)
    frame.setAccessibleName(f"{tile.label}: {tile.value}, {tile.note}")
    label, value, note = QLabel(tile.label), QLabel(tile.value), wrapped(tile.tone, tile.note)
    label.setProperty("role", "small")
    value.setProperty("role", "figure")
    value.setFont(figure_font("large", QFont.Weight.DemiBold))
    value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    note.setFont(figure_font("small"))
    vbox(
        label, value, note, STRETCH,
        of=frame, spacing=0, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_2),
    )  # fmt: skip
    return frame


class Cell(NamedTuple):
    """One table cell; `tone`: a role of the stylesheet."""

    text: str
    tone: str = ""


class _Head(ElidedLine):
    """A column's title, whole where there is room."""

    alignment = Qt.AlignmentFlag.AlignRight
    elide_mode = Qt.TextElideMode.ElideMiddle

    def minimumSizeHint(self) -> QSize:
        start = QFontMetrics(self._font()).horizontalAdvance(self.text()[:LEAST_HEAD])
        return QSize(start + 1, self.sizeHint().height())


class FigureGrid(QWidget):
    """Table of figures: labels left, values right-aligned beside them. `label_width`: minimum
    pixels of the first column."""

    def __init__(self, name: str, label_width: int) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._label_width = label_width
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_4)
        self._grid.setVerticalSpacing(SPACE_1)
        self.cells: list[list[str]] = []

    def show_rows(self, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        empty_layout(self._grid)
        self.cells = [[cell.text for cell in row] for row in rows]
        for column, head in enumerate(heads):
            self._add(0, column, Cell(head, "small"), head)
        for place, row in enumerate(rows, 1):
            for column, cell in enumerate(row):
                self._add(place, column, cell, heads[column])
        for column in range(self._grid.columnCount()):
            self._grid.setColumnStretch(column, 0)
        self._grid.setColumnStretch(len(heads), 1)  # extra width goes after the last column

    def _add(self, row: int, column: int, cell: Cell, head: str) -> None:
        if not column:
            name = ElidedLine("text_muted", "body", hugs=True)
            name.set_text(cell.text)
            name.setMinimumWidth(self._label_width)
            self._grid.addWidget(name, row, 0)
            return
        if not row:
            title = _Head("text_muted", hugs=True)
            title.set_text(head)
            self._grid.addWidget(title, row, column, Qt.AlignmentFlag.AlignRight)
            return
        label = QLabel(cell.text)
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setProperty("role", cell.tone)
        label.setFont(figure_font())
        label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        label.setAccessibleName(f"{head}: {cell.text}")
        self._grid.addWidget(label, row, column)
