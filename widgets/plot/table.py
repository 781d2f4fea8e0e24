"""A plot's values as a table: on screen, as CSV, in the clipboard."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QTableView, QWidget

from widgets.controls.layouts import vbox
from widgets.controls.tables import Index, RowTable
from widgets.plot.series import Floats
from widgets.theme.theme import SPACE_3, figure_font

MOST_WIDTH = 1080


class Column(NamedTuple):
    header: str
    times: Floats
    values: Floats


Cell = float | str | None


class ValuesTable(NamedTuple):
    """Numbers and texts; None is an empty cell. `digits`: decimals of each column on the screen.
    Without them the first column is a time, and the newest row is last here but first on the
    screen."""

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: tuple[int, ...] = ()

    def as_csv(self, delimiter: str = ",") -> str:
        """Full precision, as in RFC 4180 except for the line ends."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        writer.writerow(self.headers)
        for first, *values in self.rows:
            is_time = not self.digits and isinstance(first, float)
            writer.writerow([f"{first:.3f}" if is_time else _exact(first), *map(_exact, values)])
        return out.getvalue()

    def shown(self, row: int, column: int) -> str:
        """A cell of row `row` on the screen."""
        value = self.rows[row if self.digits else -1 - row][column]
        if value is None or isinstance(value, str):
            return value or ""
        digits = self.digits[column] if self.digits else (1 if column == 0 else 3)
        return f"{value:,.{digits}f}"


def _exact(value: Cell) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.9g}"


def join_columns(time_header: str, columns: Sequence[Column], now: float) -> ValuesTable:
    """Columns joined over all of their times, oldest first; times relative to `now`. Samples with
    equal times (several tokens of one step) get a row each. At least one column."""
    keys = [np.array((column.times, _repeats(column.times))).T for column in columns]
    every, row = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    cells = np.full((len(every), len(columns)), np.nan)
    counts = [len(column.times) for column in columns]
    values = [column.values for column in columns]
    cells[row, np.repeat(np.arange(len(columns)), counts)] = np.concatenate(values)
    known = np.where(np.isnan(cells), None, cells)  # type: ignore[call-overload]
    times = (every[:, 0] - now).tolist()
    rows = tuple((time, *found) for time, found in zip(times, known.tolist(), strict=True))
    return ValuesTable((time_header, *(column.header for column in columns)), rows)


def _repeats(times: Floats) -> NDArray[np.intp]:
    """Of each time the number of equal times before it."""
    starts = np.flatnonzero(np.diff(times, prepend=-np.inf))
    return np.arange(len(times)) - np.repeat(starts, np.diff(starts, append=len(times)))


def save_table(table: ValuesTable, path: Path) -> None:
    """Raises OSError."""
    path.write_text(table.as_csv(), encoding="utf-8")


class _TableModel(RowTable[tuple[Cell, ...]]):
    def __init__(self, table: ValuesTable, parent: QWidget) -> None:
        super().__init__(parent)
        self._table, self._rows, self.HEADINGS = table, list(table.rows), table.headers
        columns = enumerate(zip(*table.rows, strict=True)) if table.digits else ()
        self._words = {i for i, cells in columns if any(isinstance(c, str) for c in cells)}

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        if role == Qt.ItemDataRole.FontRole:
            return figure_font()
        if role != Qt.ItemDataRole.DisplayRole:
            return None
        return self._table.shown(index.row(), index.column())

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> object:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(section)
        return super().headerData(section, orientation, role)

    def _alignment(self, column: int) -> Qt.AlignmentFlag:
        """Texts left-aligned, numbers right-aligned."""
        is_words = column in self._words
        side = Qt.AlignmentFlag.AlignLeft if is_words else Qt.AlignmentFlag.AlignRight
        return side | Qt.AlignmentFlag.AlignVCenter


class ValuesDialog(QDialog):
    """A snapshot of a plot's values."""

    def __init__(self, title: str, table: ValuesTable, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(f"{title} values")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.view = QTableView(self)
        self.view.setProperty("padded", True)
        self.view.setModel(_TableModel(table, self))
        self.view.verticalHeader().hide()
        self.view.horizontalHeader().setDefaultSectionSize(130)
        self.view.horizontalHeader().setStretchLastSection(True)
        if table.digits:  # columns of many kinds, and no clock that adds rows
            self.view.horizontalHeader().setResizeContentsPrecision(100)
            self.view.resizeColumnsToContents()
        self.view.setAccessibleName(f"{title} values")
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, self)
        buttons.rejected.connect(self.reject)
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(self.view, buttons, of=self, margins=margins)
        self.resize(min(140 * len(table.headers) + 40, MOST_WIDTH), 420)
