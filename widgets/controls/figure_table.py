"""`FigureTable`: figures of points or rungs in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtWidgets import QTableView

from engine.units import NOTHING
from widgets.controls.tables import FittedColumns, Index, RowTable, SmallFigures, dress_table
from widgets.theme.theme import theme

T = TypeVar("T")
_UNLIMITED = 2**24 - 1
"""QWIDGETSIZE_MAX."""


class FigureRow(NamedTuple, Generic[T]):
    """`tone`: "best", "failed", "muted" or ""."""

    of: T
    texts: Sequence[str]
    tone: str = ""
    tip: str = ""


class FigureModel(RowTable[FigureRow[T]]):
    """Figures are right-aligned; columns of words left-aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: Sequence[str] = ()
        self._figures: frozenset[int] = frozenset()  # columns

    def show(self, headings: Sequence[str], rows: Sequence[FigureRow[T]]) -> None:
        self.headings = headings
        columns = zip(*(row.texts for row in rows), strict=True)
        self._figures = frozenset(
            place for place, texts in enumerate(columns)
            if any(texts) and all(map(_is_figure, filter(None, texts)))
        )  # fmt: skip
        self.set_rows(list(rows))

    def _alignment(self, column: int) -> Qt.AlignmentFlag:
        sides = Qt.AlignmentFlag
        side = sides.AlignRight if column in self._figures else sides.AlignLeft
        return side | sides.AlignVCenter

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self.headings)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(section)
        return self.headings[section] if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.row_at(index.row())
        if row is None:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return row.texts[index.column()]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        if role == Qt.ItemDataRole.ForegroundRole and row.tone:
            known = {"best": "success", "failed": "danger"}
            return theme().color(known.get(row.tone, "text_muted"))
        if role == Qt.ItemDataRole.ToolTipRole:
            return row.tip or None
        return None


def _is_figure(text: str) -> bool:
    return text == NOTHING or any(one.isdigit() for one in text[:2])


class FigureTable(QTableView, Generic[T]):
    """`picked`: another row was selected. ends_in_words: the last column is a text, with the rest
    of the width."""

    picked = Signal()
    _is_limited = False

    def __init__(self, name: str, *, ends_in_words: bool = False) -> None:
        super().__init__()
        self.figures: FigureModel[T] = FigureModel()
        self.setModel(self.figures)
        dress_table(self, name)
        SmallFigures(self)
        self._ends_in_words = ends_in_words
        self._columns = FittedColumns(self.horizontalHeader(), self._widths)
        self.selectionModel().selectionChanged.connect(lambda: self.picked.emit())

    def show_rows(self, headings: Sequence[str], rows: Sequence[FigureRow[T]]) -> None:
        """The selected row stays selected."""
        chosen = self.currentIndex().row()
        self.figures.show(headings, rows)
        self._columns.fit()
        if 0 <= chosen < self.figures.rowCount():
            self.selectRow(chosen)

    def _widths(self) -> dict[int, int]:
        """By their contents. The room that is left is the text's, which does not widen the table;
        without one, all columns share it."""
        header = self.horizontalHeader()
        columns = range(self.figures.columnCount())
        widths = {c: max(self.sizeHintForColumn(c), header.sectionSizeHint(c)) for c in columns}
        if widths and self._ends_in_words:
            last = columns[-1]
            widths[last] = header.width() - sum(widths[c] for c in columns[:-1])
        elif widths:
            share = max(0, header.width() - sum(widths.values())) // len(widths)
            widths = {column: width + share for column, width in widths.items()}
        return widths

    def limit_height(self, is_limited: bool) -> None:
        """Limit the height to that of the rows; its neighbours take the rest."""
        self._is_limited = is_limited
        self.updateGeometries()

    def updateGeometries(self) -> None:
        super().updateGeometries()
        most = _UNLIMITED
        if self._is_limited:
            across = self.horizontalHeader()
            bar = self.horizontalScrollBar().sizeHint().height()
            most = across.sizeHint().height() + self.verticalHeader().length()
            most += 2 * self.frameWidth() + bar * (across.length() > self.viewport().width())
        if most != self.maximumHeight():
            self.setMaximumHeight(most)

    def choose(self, of: T) -> None:
        """Select its first row, if it has one."""
        row = self._row_of(of)
        if row is not None:
            self.selectRow(row)

    def reveal(self, of: T) -> None:
        """Scroll to its first row, if it has one."""
        row = self._row_of(of)
        if row is not None:
            self.scrollTo(self.figures.index(row, 0))

    def _row_of(self, of: T) -> int | None:
        rows = range(self.figures.rowCount())
        return next((row for row in rows if self._of(row) is of), None)

    def _of(self, row: int) -> T | None:
        found = self.figures.row_at(row)
        return None if found is None else found.of

    @property
    def chosen(self) -> T | None:
        return self._of(self.currentIndex().row())
