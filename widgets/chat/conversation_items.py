"""Model and painting of the list of conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import (
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QSize,
    QStringListModel,
    Qt,
    Signal,
)
from PySide6.QtGui import QFontMetrics, QPainter, QTextCharFormat
from PySide6.QtWidgets import QLineEdit, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from widgets.chat.records import ConversationRecord
from widgets.controls.layouts import dressed
from widgets.controls.lines import marked_line
from widgets.plot.text import TextPen
from widgets.theme.icons import icon
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme, theme_notifier, ui_font

_MARK = 14  # pixels of the icons beside a title

Index = QModelIndex | QPersistentModelIndex
RECORD = Qt.ItemDataRole.UserRole
RowKey = tuple[str, str]  # of a line: see ConversationRecord.key


class ConversationModel(QStringListModel):
    """Records are made for visible rows only, of ten thousand conversations.

    The base class only counts rows: a layout of ten thousand asks for the count eighty thousand
    times, too often for Python. Its strings are empty.
    """

    renamed = Signal(str, str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._keys: Sequence[RowKey] = ()
        self._rows: dict[RowKey, int] = {}
        self._first: dict[str, int] = {}  # by conversation, of which a search shows every hit
        nothing: list[ConversationRecord] = []
        self._record_of: Callable[[int], ConversationRecord] = nothing.__getitem__
        self._made: dict[int, ConversationRecord] = {}  # what was looked at

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        record, roles = self.record(index), Qt.ItemDataRole
        match role:
            case roles.DisplayRole | roles.EditRole | roles.ToolTipRole:
                return record.title
            case roles.AccessibleTextRole:
                return _spoken(record)
            case roles.UserRole:
                return record
        return None

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        title = " ".join(str(value).split())
        record = self.record(index)
        if not title or title == record.title:
            return False
        self._put(index.row(), record._replace(title=title))
        self.renamed.emit(record.id, title)
        return True

    def record(self, index: Index) -> ConversationRecord:
        return self.record_at(index.row())

    def record_at(self, row: int) -> ConversationRecord:
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = self._record_of(row)
        return made

    def index_of(self, conversation_id: str) -> QModelIndex:
        row = self._first.get(conversation_id)
        return QModelIndex() if row is None else self.index(row)

    def set_rows(
        self, keys: Sequence[RowKey], record_of: Callable[[int], ConversationRecord]
    ) -> None:
        """Show rows of these keys; `record_of(row)` makes the visible ones."""
        self._record_of = record_of
        if keys == self._keys:
            for row in list(self._made):
                self._put(row, record_of(row))
            return
        self._keys, self._made = keys, {}
        self._rows = {key: row for row, key in enumerate(keys)}
        self._first = {key[0]: len(keys) - 1 - i for i, key in enumerate(reversed(keys))}
        self.setStringList([""] * len(keys))

    def update_record(self, record: ConversationRecord) -> None:
        row = self._rows.get(record.key)
        if row is not None:
            self._put(row, record)

    def _put(self, row: int, record: ConversationRecord) -> None:
        if self._made.get(row) != record:
            self._made[row] = record
            self.dataChanged.emit(self.index(row), self.index(row))


def _spoken(record: ConversationRecord) -> str:
    states = {"pinned": record.is_pinned, "archived": record.is_archived}
    place = [f"match {record.place}"] if record.place else []
    named = [name for name, on in states.items() if on]
    return ", ".join([record.title, *place, record.detail, *named])


class ConversationDelegate(QStyledItemDelegate):
    """Paints a title above the state or the date."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._take_fonts()
        theme_notifier().changed.connect(self._on_theme)

    def _on_theme(self) -> None:
        before = self._height
        self._take_fonts()
        if self._height != before:  # the view keeps the height of a line
            self.sizeHintChanged.emit(QModelIndex())

    def _take_fonts(self) -> None:
        self._title, self._detail = TextPen(ui_font()), TextPen(figure_font("small"))
        self._title_height = QFontMetrics(ui_font()).height()
        self._height = self._title_height + QFontMetrics(ui_font("small")).height()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, self._height + 2 * SPACE_1 + 2)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        record: ConversationRecord = index.data(RECORD)
        colors = theme()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area: QRect = option.rect
        state: QStyle.StateFlag = option.state
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        if is_selected or state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colors.color("pressed" if is_selected else "hover"))
            painter.drawRoundedRect(area, SPACE_1, SPACE_1)
        if is_selected and state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(colors.color("accent"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(area.adjusted(1, 1, -1, -1), SPACE_1, SPACE_1)
        text = area.adjusted(SPACE_2, SPACE_1, -SPACE_2, -SPACE_1)
        title = QRect(text.left(), text.top(), text.width(), self._title_height)
        for mark in ("pin",) * record.is_pinned + ("archive",) * record.is_archived:
            title.setRight(title.right() - _MARK - SPACE_1)
            place = QRect(title.right() + SPACE_1, 0, _MARK, _MARK)
            place.moveTop(title.center().y() - _MARK // 2)
            icon(mark).paint(painter, place)
        if record.place:
            painter.setPen(colors.color("text_muted"))
            width = self._detail.width(record.place)
            self._detail.use(painter).right(painter, title.toRectF(), record.place)
            title.setRight(title.right() - round(width) - SPACE_2)
        is_first = not record.place or record.place.startswith("1 of ")
        painter.setPen(colors.color("text" if is_first else "text_muted"))
        pen = self._title.use(painter)
        pen.left(painter, title.toRectF(), pen.elided(record.title, title.width()))
        text.setTop(title.bottom() + 1)
        self._paint_detail(painter, record, text)
        painter.restore()

    def _paint_detail(self, painter: QPainter, record: ConversationRecord, area: QRect) -> None:
        colors = theme()
        if record.is_busy:
            size = 6
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colors.color("state_busy"))
            painter.drawEllipse(area.left(), area.center().y() - size // 2 + 1, size, size)
            area = area.adjusted(size + SPACE_1, 0, 0, 0)
        detail = self._detail.elided(record.detail, area.width())
        painter.setPen(colors.color("text_muted"))
        if not record.marks:
            self._detail.use(painter).left(painter, area.toRectF(), detail)
            return
        marked = QTextCharFormat()
        marked.setForeground(colors.color("text"))
        marked.setFontWeight(600)
        painter.setClipRect(area)
        layout = marked_line(detail, self._detail.font, record.marks, marked)
        layout.draw(painter, area.topLeft().toPointF())

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        return dressed(QLineEdit(parent, maxLength=200), "Chat title")

    def updateEditorGeometry(
        self, editor: QWidget, option: QStyleOptionViewItem, index: Index
    ) -> None:
        area: QRect = option.rect
        height = editor.sizeHint().height()
        editor.setGeometry(area.left(), area.center().y() - height // 2, area.width(), height)
