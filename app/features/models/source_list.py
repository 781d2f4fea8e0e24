"""List of models under headings, each with a title and a muted line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from PySide6.QtCore import (
    QModelIndex,
    QPersistentModelIndex,
    QRect,
    QSignalBlocker,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from app.storage.model_sources import ModelSource, SourceKind
from widgets.theme.theme import SPACE_1, SPACE_2, theme, ui_font

SOURCE = Qt.ItemDataRole.UserRole
STATE = Qt.ItemDataRole.UserRole + 1
OPEN = "open"
Row = ModelSource | str
"""A model, or a heading."""
Index = QModelIndex | QPersistentModelIndex


class SourceList(QListWidget):
    """`source_chosen` when the selection changes, `source_opened` on Enter or double click."""

    source_chosen = Signal(object)
    source_opened = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._open = ""
        self.setAccessibleName("Models")
        self.setItemDelegate(_Delegate(self))
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.setUniformItemSizes(False)
        self.currentItemChanged.connect(self._on_current)
        self.itemActivated.connect(lambda item: self.source_opened.emit(item.data(SOURCE)))

    def show_sources(self, sources: Iterable[ModelSource]) -> None:
        """Replace the list; keeps the selection."""
        rows = list(_with_headings(sources))
        if [_key(row) for row in rows] == [_key(row) for row in self._rows()]:
            self._renew(rows)
            return
        chosen, scrolled = self.source, self.verticalScrollBar().value()
        with QSignalBlocker(self):
            self.clear()
            for row in rows:
                item = QListWidgetItem(row if isinstance(row, str) else "")
                if isinstance(row, ModelSource):
                    self._fill(item, row)
                else:
                    item.setFlags(Qt.ItemFlag.NoItemFlags)
                self.addItem(item)
            if chosen is not None:
                self.choose(chosen)
        self.verticalScrollBar().setValue(scrolled)

    def show_open(self, path: str) -> None:
        """Mark the open model; "" for none."""
        if path != self._open:
            self._open = path
            self._renew(list(self._rows()), again=True)

    def choose_open(self) -> None:
        """Select the open model, if it is listed and nothing is selected."""
        if self.source is None:
            for source in self.sources:
                if source.path == self._open:
                    self.choose(source)

    @property
    def source(self) -> ModelSource | None:
        item = self.currentItem()
        return item.data(SOURCE) if item is not None else None

    def choose(self, source: ModelSource) -> None:
        """Select `source`; emits `source_chosen`."""
        for number, row in enumerate(self._rows()):
            if isinstance(row, ModelSource) and row.key == source.key:
                self.setCurrentRow(number)
                return

    @property
    def sources(self) -> list[ModelSource]:
        return [row for row in self._rows() if isinstance(row, ModelSource)]

    def _rows(self) -> list[Row]:
        items = [self.item(row) for row in range(self.count())]
        return [item.data(SOURCE) or item.text() for item in items]

    def _renew(self, rows: list[Row], again: bool = False) -> None:
        """Update changed models in place; `again`: all of them."""
        for number, row in enumerate(rows):
            if isinstance(row, ModelSource) and (again or self.item(number).data(SOURCE) != row):
                self._fill(self.item(number), row)

    def _fill(self, item: QListWidgetItem, source: ModelSource) -> None:
        state = OPEN if source.path == self._open else ""
        item.setText(source.title)
        item.setData(SOURCE, source)
        item.setData(STATE, state)
        item.setToolTip(source.path)
        words = ", ".join(filter(None, (source.title, state, source.subtitle)))
        item.setData(Qt.ItemDataRole.AccessibleTextRole, words)

    def _on_current(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.source_chosen.emit(item.data(SOURCE))


def _with_headings(sources: Iterable[ModelSource]) -> Iterator[Row]:
    by_kind: dict[SourceKind, list[ModelSource]] = {}
    for source in sources:
        by_kind.setdefault(source.kind, []).append(source)
    for kind in SourceKind:
        if kind in by_kind:
            yield kind.value
            yield from by_kind[kind]


def _key(row: Row) -> tuple[str, ...]:
    return (row.kind, *row.key) if isinstance(row, ModelSource) else (row,)


class _Delegate(QStyledItemDelegate):
    """Paints title above subtitle; headings are muted and small."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        line = option.fontMetrics.height()
        lines = 1 if index.data(SOURCE) is None else 2
        return QSize(0, lines * line + 2 * SPACE_1 + (SPACE_2 if lines == 1 else 0))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        source: ModelSource | None = index.data(SOURCE)
        self.initStyleOption(option, index)
        area = option.rect.adjusted(SPACE_2, SPACE_1, -SPACE_2, -SPACE_1)
        painter.save()
        if source is None:
            painter.setFont(ui_font("small"))
            painter.setPen(theme().color("text_muted"))
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
            painter.drawText(area, flags, index.data(Qt.ItemDataRole.DisplayRole))
        else:
            option.text = ""
            style = option.widget.style()
            style.drawControl(QStyle.ControlElement.CE_ItemViewItem, option, painter, option.widget)
            self._paint_source(painter, area, source, index.data(STATE) or "")
        painter.restore()

    @staticmethod
    def _paint_source(painter: QPainter, area: QRect, source: ModelSource, state: str) -> None:
        title = QRect(area.left(), area.top(), area.width(), area.height() // 2)
        below = title.translated(0, title.height())
        if state:
            painter.setFont(ui_font("small"))
            painter.setPen(theme().color("accent"))
            painter.drawText(below, Qt.AlignmentFlag.AlignVCenter, state)
            below.setLeft(below.left() + painter.fontMetrics().horizontalAdvance(f"{state}  "))
        rows = (
            (source.title, ui_font(), "text", title),
            (source.subtitle, ui_font("small"), "text_muted", below),
        )
        for text, font, color, rect in rows:
            painter.setFont(font)
            painter.setPen(theme().color(color))
            short = painter.fontMetrics().elidedText(
                text, Qt.TextElideMode.ElideMiddle, rect.width()
            )
            painter.drawText(rect, Qt.AlignmentFlag.AlignVCenter, short)
