"""A chart's values as text: for the clipboard, a file, and those who cannot see the drawing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QTableView, QVBoxLayout, QWidget

from widgets.charts.ring import Floats
from widgets.theme import figure_font

_Index = QModelIndex | QPersistentModelIndex


class Column(NamedTuple):
    header: str
    times: Floats
    values: Floats


class ValuesTable(NamedTuple):
    """One row per time; a series that has no value then has an empty cell there."""

    headers: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]

    def as_csv(self, delimiter: str = ",") -> str:
        """With full precision, as RFC 4180 has it but for the line ends."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        writer.writerow(self.headers)
        for time, *values in self.rows:
            writer.writerow([f"{time:.3f}", *("" if v is None else f"{v:.9g}" for v in values)])
        return out.getvalue()


def join_columns(time_header: str, columns: Sequence[Column], now: float) -> ValuesTable:
    """Columns side by side over all of their times, oldest first; times relative to `now`.

    Samples that share a time (several tokens of one step) get a row each.
    """
    keys = [_keys(column.times) for column in columns]
    every = sorted(set().union(*keys)) if keys else []
    cells = [
        dict(zip(keyed, column.values.tolist(), strict=True))
        for keyed, column in zip(keys, columns, strict=True)
    ]
    rows = tuple(
        (key[0] - now, *(_cell(found.get(key)) for found in cells)) for key in every
    )
    return ValuesTable((time_header, *(column.header for column in columns)), rows)


def _keys(times: Floats) -> list[tuple[float, int]]:
    """Each time with the number of the same times before it."""
    if not len(times):
        return []
    starts = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
    repeats = np.arange(len(times)) - np.repeat(starts, np.diff(starts, append=len(times)))
    return list(zip(times.tolist(), repeats.tolist(), strict=True))


def _cell(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


class _TableModel(QAbstractTableModel):
    """Shows a ValuesTable, newest row first."""

    def __init__(self, table: ValuesTable, parent: QWidget) -> None:
        super().__init__(parent)
        self._table = table

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._table.rows)

    def columnCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._table.headers)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.FontRole:
            return figure_font()
        if role != Qt.ItemDataRole.DisplayRole:
            return None
        value = self._table.rows[-1 - index.row()][index.column()]
        if value is None:
            return ""
        return f"{value:,.1f}" if index.column() == 0 else f"{value:,.3f}"

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> object:
        if role != Qt.ItemDataRole.DisplayRole or orientation != Qt.Orientation.Horizontal:
            return None
        return self._table.headers[section]


class ValuesDialog(QDialog):
    """The values of a chart as they were when it was opened."""

    def __init__(self, title: str, table: ValuesTable, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(f"{title}: values")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.view = QTableView(self)
        self.view.setModel(_TableModel(table, self))
        self.view.verticalHeader().hide()
        self.view.horizontalHeader().setDefaultSectionSize(130)
        self.view.horizontalHeader().setStretchLastSection(True)
        self.view.setAccessibleName(f"Values of {title}")
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, self)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addWidget(self.view)
        layout.addWidget(buttons)
        self.resize(140 * len(table.headers) + 40, 420)
