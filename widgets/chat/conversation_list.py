"""`ConversationList`: the chats, with search, renaming in place, archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QItemSelectionModel, QModelIndex, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QLineEdit, QListView, QMenu, QPushButton, QWidget

from widgets.chat.conversation_items import ConversationDelegate, ConversationModel, RowKey
from widgets.chat.records import ConversationRecord
from widgets.controls.layouts import dressed, label, vbox
from widgets.controls.text import key_words
from widgets.theme.icons import icon, set_icon
from widgets.theme.theme import SPACE_2, SPACE_4, theme_notifier

SEARCH_DELAY_MS = 120
_GLASS = 24
"""Width of the icon in the search field, in pixels."""


class ConversationList(QWidget):
    """Signals carry the id of a conversation; `hit_opened` also that of a message."""

    new_requested = Signal()
    opened = Signal(str)
    hit_opened = Signal(str, str)
    renamed = Signal(str, str)
    delete_requested = Signal(str)
    search_changed = Signal(str)
    pin_requested = Signal(str, bool)
    archive_requested = Signal(str, bool)
    export_requested = Signal(str)
    archive_shown = Signal(bool)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.new_button = dressed(QPushButton(), "New chat", kind="primary")
        self.new_button.clicked.connect(self.new_requested)
        self.search = SearchField()
        key_words().changed.connect(self._name_keys)
        theme_notifier().changed.connect(self._name_keys)
        self._later = QTimer(self, singleShot=True, interval=SEARCH_DELAY_MS)
        self._later.timeout.connect(lambda: self.search_changed.emit(self.search.text()))
        self.search.textChanged.connect(lambda: self._later.start())
        self.search.returnPressed.connect(self._open_first)
        self.search.down_pressed.connect(self._enter_list)
        self._model = ConversationModel(self)
        self._model.renamed.connect(self.renamed)
        self.view = ConversationView()
        self.view.setModel(self._model)
        self.view.setItemDelegate(ConversationDelegate(self.view))
        self.view.chosen.connect(self._open_index)
        self.view.delete_pressed.connect(
            lambda index: self.delete_requested.emit(self._model.record(index).id)
        )
        self.view.customContextMenuRequested.connect(self._show_menu)
        self._empty = label(role="small")
        self._empty.setWordWrap(True)
        self._empty.setContentsMargins(SPACE_2, SPACE_2, SPACE_2, SPACE_2)
        self._empty.hide()
        self.archive = dressed(QPushButton(), tip="Show archived chats", kind="flat")
        self.archive.setCheckable(True)
        set_icon(self.archive, "archive")
        self.archive.toggled.connect(self.archive_shown)
        self.archive.hide()
        parts = (self.new_button, self.search, self._empty, (self.view, 1), self.archive)
        vbox(*parts, of=self, margins=(SPACE_2, SPACE_2, SPACE_2, SPACE_2))
        self.setMinimumWidth(160)
        self._name_keys()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._name_keys()

    def _name_keys(self) -> None:
        """Labels with their shortcuts, where these fit."""
        room = self.width() - 2 * SPACE_2
        for widget, show, text, command, taken in (
            (self.new_button, self.new_button.setText, "New chat", "chat.new", 2 * SPACE_4),
            (self.search, self.search.setPlaceholderText, "Search chats", "chat.search",
             2 * SPACE_4 + _GLASS),
        ):  # fmt: skip
            whole = f"{text}     {key_words().of(command)}".rstrip()
            fits = widget.fontMetrics().horizontalAdvance(whole) <= room - taken
            show(whole if fits else text)

    def set_rows(
        self, keys: Sequence[RowKey], record_of: Callable[[int], ConversationRecord], current: str
    ) -> None:
        """Show records with `current` selected ("": none). `record_of(row)` makes one when it
        becomes visible."""
        self._model.set_rows(keys, record_of)
        self._empty.setText(
            "No results." if self.search.text().strip()
            else "No archived chats." if self.archive.isChecked()
            else "No chats yet."
        )  # fmt: skip
        self._empty.setVisible(not keys)
        self.select(current)

    def set_num_archived(self, count: int) -> None:
        """Number of archived chats; without any the button is hidden."""
        self.archive.setText(f"Archived    {count:,}")
        self.archive.setVisible(count > 0)
        if not count:
            self.archive.setChecked(False)

    def update_conversation(self, record: ConversationRecord) -> None:
        self._model.update_record(record)

    def select(self, conversation_id: str) -> None:
        if conversation_id and self.selected == conversation_id:
            return  # a search has several rows for it
        index, selection = self._model.index_of(conversation_id), self.view.selectionModel()
        if index.isValid():
            flag = QItemSelectionModel.SelectionFlag.ClearAndSelect
            selection.setCurrentIndex(index, flag)
        else:
            selection.clear()

    @property
    def records(self) -> list[ConversationRecord]:
        return [self._model.record_at(row) for row in range(self._model.rowCount())]

    @property
    def selected(self) -> str:
        index = self.view.currentIndex()
        return self._model.record(index).id if index.isValid() else ""

    def focus_search(self) -> None:
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    def rename(self, conversation_id: str) -> None:
        index = self._model.index_of(conversation_id)
        if index.isValid():
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    def _open_index(self, index: QModelIndex) -> None:
        record = self._model.record(index)
        if record.hit:
            self.hit_opened.emit(record.id, record.hit)
        else:
            self.opened.emit(record.id)

    def _open_first(self) -> None:
        if self._later.isActive():
            self._later.stop()
            self.search_changed.emit(self.search.text())
        if self._model.rowCount():
            self._open_index(self._model.index(0))

    def _enter_list(self) -> None:
        if self._model.rowCount():
            self.view.setFocus()
            self.view.setCurrentIndex(self._model.index(0))

    def _show_menu(self, position: QPoint) -> None:
        index = self.view.indexAt(position)
        if index.isValid():
            menu = self.menu_for(self._model.record(index))
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(self.view.viewport().mapToGlobal(position))

    def menu_for(self, record: ConversationRecord) -> QMenu:
        menu = QMenu(self)
        rename = menu.addAction(icon("edit"), "Rename", lambda: self.rename(record.id))
        rename.setShortcut("F2")
        pin = "Unpin" if record.is_pinned else "Pin"
        menu.addAction(
            icon("pin"), pin, lambda: self.pin_requested.emit(record.id, not record.is_pinned)
        )
        menu.addAction(
            icon("archive"),
            "Unarchive" if record.is_archived else "Archive",
            lambda: self.archive_requested.emit(record.id, not record.is_archived),
        )
        export, delete = self.export_requested, self.delete_requested
        menu.addAction(icon("download"), "Export…", lambda: export.emit(record.id))
        menu.addSeparator()
        remove = menu.addAction(icon("delete"), "Delete", lambda: delete.emit(record.id))
        remove.setShortcut("Delete")
        return menu


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
        self.clicked.connect(self.chosen)

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
