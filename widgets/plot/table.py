"""A plot's values as a table: on screen, as CSV, in the clipboard."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
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
    equal times (several tokens of one step) get a row each."""
    keys = [_keys(column.times) for column in columns]
    every = sorted(set().union(*keys)) if keys else []
    cells = [
        dict(zip(keyed, column.values.tolist(), strict=True))
        for keyed, column in zip(keys, columns, strict=True)
    ]
    rows = tuple((key[0] - now, *(_known(found.get(key)) for found in cells)) for key in every)
    return ValuesTable((time_header, *(column.header for column in columns)), rows)


def _keys(times: Floats) -> list[tuple[float, int]]:
    """Each time with the number of equal times before it."""
    if not len(times):
        return []
    starts = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
    repeats = np.arange(len(times)) - np.repeat(starts, np.diff(starts, append=len(times)))
    return list(zip(times.tolist(), repeats.tolist(), strict=True))


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


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
