"""The list of models that can be opened, under headings, with a title and a muted line each."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from app.models.sources import ModelSource, SourceKind
from widgets.theme import SPACE_1, SPACE_2, theme, ui_font

SOURCE = Qt.ItemDataRole.UserRole
Index = QModelIndex | QPersistentModelIndex


class SourceList(QListWidget):
    """`source_chosen` when the selection moves, `source_opened` on Enter or double click."""

    source_chosen = Signal(object)
    source_opened = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Models")
        self.setItemDelegate(_Delegate(self))
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.setUniformItemSizes(False)
        self.currentItemChanged.connect(self._on_current)
        self.itemActivated.connect(lambda item: self.source_opened.emit(item.data(SOURCE)))

    def show_sources(self, sources: Iterable[ModelSource]) -> None:
        """Replace the list; the selection stays where it was."""
        chosen = self.source
        by_kind: dict[SourceKind, list[ModelSource]] = {}
        for source in sources:
            by_kind.setdefault(source.kind, []).append(source)
        self.blockSignals(True)
        self.clear()
        for kind in SourceKind:
            if by_kind.get(kind):
                self._add_heading(kind.value)
                for source in by_kind[kind]:
                    self._add(source)
        if chosen is not None:
            self._select(chosen)
        self.blockSignals(False)

    @property
    def source(self) -> ModelSource | None:
        item = self.currentItem()
        return item.data(SOURCE) if item is not None else None

    def choose(self, source: ModelSource) -> None:
        """Select `source`; emits `source_chosen`."""
        self._select(source)

    @property
    def sources(self) -> list[ModelSource]:
        items = [self.item(row) for row in range(self.count())]
        return [item.data(SOURCE) for item in items if item.data(SOURCE) is not None]

    def _select(self, source: ModelSource) -> None:
        for row in range(self.count()):
            known = self.item(row).data(SOURCE)
            if known is not None and known.key == source.key:
                self.setCurrentRow(row)
                return

    def _add_heading(self, text: str) -> None:
        item = QListWidgetItem(text)
        item.setFlags(Qt.ItemFlag.NoItemFlags)
        self.addItem(item)

    def _add(self, source: ModelSource) -> None:
        item = QListWidgetItem(source.title)
        item.setData(SOURCE, source)
        item.setToolTip(source.path)
        item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{source.title}, {source.subtitle}")
        self.addItem(item)

    def _on_current(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.source_chosen.emit(item.data(SOURCE))


class _Delegate(QStyledItemDelegate):
    """Paints title over subtitle; headings are muted and small."""

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
            self._paint_source(painter, area, source)
        painter.restore()

    @staticmethod
    def _paint_source(painter: QPainter, area: QRect, source: ModelSource) -> None:
        title = QRect(area.left(), area.top(), area.width(), area.height() // 2)
        below = title.translated(0, title.height())
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
