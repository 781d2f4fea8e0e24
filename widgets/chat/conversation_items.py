"""Parts of the list of conversations: its view, the painting of a row, the search field."""

from __future__ import annotations

from PySide6.QtCore import (
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QTextCharFormat,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QLineEdit,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from widgets.chat.records import ConversationRecord
from widgets.controls.layouts import dressed
from widgets.controls.lines import marked_line
from widgets.plot.text import TextPen
from widgets.theme.icons import icon, set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme, theme_notifier, ui_font

_MARK = 14  # pixels of the icons beside a title

Index = QModelIndex | QPersistentModelIndex
RECORD = Qt.ItemDataRole.UserRole


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


class ConversationView(QListView):
    """Opens with a click or Enter; F2 renames, Delete deletes."""

    chosen = Signal(QModelIndex)
    delete_pressed = Signal(QModelIndex)

    def __init__(self) -> None:
        super().__init__(uniformItemSizes=True)
        dressed(self, "Chats", bare=True)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMouseTracking(True)
        # opaque: when it is scrolled, Qt moves the pixels and paints only the rows that come into
        # view
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.clicked.connect(self.chosen)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), theme().color("panel"))
        painter.end()
        super().paintEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """A right click opens the menu and selects nothing: the shown chat stays marked."""
        if event.button() != Qt.MouseButton.RightButton:
            super().mousePressEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        index = self.currentIndex()
        is_editing = self.state() == QAbstractItemView.State.EditingState
        if not index.isValid() or is_editing:
            super().keyPressEvent(event)
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.chosen.emit(index)
        elif event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            self.delete_pressed.emit(index)
        else:
            super().keyPressEvent(event)


class SearchField(QLineEdit):
    """Escape clears it, Down enters the list."""

    down_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Search chats")
        glass = self.addAction(icon("search"), QLineEdit.ActionPosition.LeadingPosition)
        set_icon(glass, "search")

    def event(self, event: QEvent) -> bool:
        if (
            event.type() == QEvent.Type.ShortcutOverride
            and isinstance(event, QKeyEvent)
            and event.key() == Qt.Key.Key_Escape
            and self.text()
        ):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        elif event.key() == Qt.Key.Key_Down:
            self.down_pressed.emit()
        else:
            super().keyPressEvent(event)
