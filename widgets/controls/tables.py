"""Look and keyboard of tables, and a plain table model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from PySide6.QtCore import (
    QAbstractTableModel,
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
)
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from widgets.theme.theme import SPACE_2, figure_font, theme_notifier

_FONT_CHANGES = (QEvent.Type.FontChange, QEvent.Type.StyleChange, QEvent.Type.Polish)


class HeadingFonts(QObject):
    """Calls `fit` when the font of the headings changes: their width is unknown when the table is
    created, and changes with the text size."""

    def __init__(self, header: QHeaderView, fit: Callable[[], object]) -> None:
        super().__init__(header)
        self._fit = fit
        header.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in _FONT_CHANGES:
            self._fit()
        return False


class FittedColumns(HeadingFonts):
    """Applies `widths` in pixels, at least those of the headings, until the user resizes a
    column; they may depend on the header's width. `widest`: this column takes the room that is
    left."""

    def __init__(
        self,
        header: QHeaderView,
        widths: Callable[[], Mapping[int, int]],
        widest: int | None = None,
    ) -> None:
        super().__init__(header, self.fit)
        self._header, self._widths, self._widest = header, widths, widest
        self._fitted: dict[int, int] = {}
        # Qt gives the default width to those that come and, where some go, to the last one
        header.sectionCountChanged.connect(lambda *_: self._fitted.clear())
        self.fit()
        theme_notifier().changed.connect(self.fit)

    def fit(self) -> None:
        """Apply the widths again, e.g. for another text size."""
        widths = dict(self._widths())
        for column, width in widths.items():
            if column != self._widest:
                self._apply(column, width)
        if self._widest is not None:
            taken = self._header.length() - self._header.sectionSize(self._widest)
            room = self._header.width() - taken
            self._apply(self._widest, max(widths.get(self._widest, 0), room))

    def _apply(self, column: int, width: int) -> None:
        header, now = self._header, self._header.sectionSize(column)
        if now == self._fitted.get(column, now):
            header.resizeSection(column, max(width, header.sectionSizeHint(column)))
            self._fitted[column] = header.sectionSize(column)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self.fit()
        return super().eventFilter(watched, event)


def dress_table(view: QTableView, name: str) -> None:
    """Select whole rows, one at a time; Tab leaves the table; cells align with their headings.
    `name`: accessible name."""
    view.setAccessibleName(name)
    view.setProperty("padded", True)
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
    view.setShowGrid(False)
    view.setTabKeyNavigation(False)
    view.setWordWrap(False)
    view.verticalHeader().hide()
    header = view.horizontalHeader()
    header.setHighlightSections(False)
    header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)


class SmallFigures(QObject):
    """A table of small figures with minimal row height at every text size."""

    def __init__(self, view: QTableView) -> None:
        super().__init__(view)
        self._view = view
        # else Qt keeps the rows at least as high as the header's font was before
        view.verticalHeader().setMinimumSectionSize(1)
        self._fit()
        theme_notifier().changed.connect(self._fit)

    def _fit(self) -> None:
        self._view.setFont(figure_font("small"))
        height = self._view.fontMetrics().height() + SPACE_2
        self._view.verticalHeader().setDefaultSectionSize(height)


Index = QModelIndex | QPersistentModelIndex
Row = TypeVar("Row")


class RowTable(QAbstractTableModel, Generic[Row]):
    """A table model with one object per row. Subclasses implement `data`."""

    HEADINGS: tuple[str, ...] = ()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: list[Row] = []

    def set_rows(self, rows: list[Row]) -> None:
        """Replace all rows."""
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def row_at(self, row: int) -> Row | None:
        """A row; None if there is no such row."""
        return self._rows[row] if 0 <= row < len(self._rows) else None

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self.HEADINGS)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self.HEADINGS[section]
        return None
