"""`ConversationList`: the chats, with search, renaming in place, archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import (
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPoint,
    QStringListModel,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from widgets.chat.conversation_items import (
    ConversationDelegate,
    ConversationView,
    Index,
    SearchField,
)
from widgets.chat.records import ConversationRecord
from widgets.controls.layouts import dressed, label, vbox
from widgets.controls.text import shortcut_texts
from widgets.theme.icons import icon, set_icon
from widgets.theme.theme import SPACE_2, SPACE_4, theme_notifier

RowKey = tuple[str, str]  # unique in the list: the conversation, the message that a search found
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
        shortcut_texts().changed.connect(self._name_keys)
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
            whole = f"{text}     {shortcut_texts().of(command)}".rstrip()
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
        focus = Qt.FocusPolicy.StrongFocus if keys else Qt.FocusPolicy.NoFocus
        self.view.setFocusPolicy(focus)  # an empty list has no row to show it
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
            self.view.scrollTo(index)
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
        self._made: dict[int, ConversationRecord] = {}  # by row, made on demand

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
        row = self._rows.get((record.id, record.hit))
        if row is not None:
            self._put(row, record)

    def _put(self, row: int, record: ConversationRecord) -> None:
        if self._made.get(row) != record:
            self._made[row] = record
            self.dataChanged.emit(self.index(row), self.index(row))


def _spoken(record: ConversationRecord) -> str:
    states = {"pinned": record.is_pinned, "archived": record.is_archived}
    place = [f"search result {record.place}"] if record.place else []
    named = [name for name, on in states.items() if on]
    return ", ".join([record.title, *place, record.detail, *named])
