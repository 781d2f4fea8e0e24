"""`Palette`: the command palette over the window."""

from __future__ import annotations

from collections.abc import Iterable

import shiboken6
from PySide6.QtCore import QEvent, QModelIndex, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QCursor, QKeyEvent
from PySide6.QtWidgets import QLabel, QLineEdit, QListView, QWidget

from widgets.controls.popover import Popover
from widgets.palette.items import Entry, EntryDelegate, EntryModel, search
from widgets.theme.theme import SPACE_1, SPACE_2

WIDTH, MOST_ROWS = 560, 12
_MOVES = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: MOST_ROWS - 1,
    Qt.Key.Key_PageUp: 1 - MOST_ROWS,
}


class Palette(Popover):
    """`chosen(id)` after it has closed. The keyboard stays in the field; up, down and Enter work
    on the list. What was chosen last stands first, as long as nothing is typed."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Command palette")
        self._window = parent
        self._entries: list[Entry] = []
        self._more: list[Entry] = []
        self._recent: list[str] = []
        self._focus_before: QWidget | None = None
        self.field = QLineEdit()
        self.field.setPlaceholderText("Search commands and settings")
        self.field.setAccessibleName("Command")
        self.field.setClearButtonEnabled(True)
        self.field.textChanged.connect(lambda text: self._search())
        self.model = EntryModel(self)
        self.view = QListView()
        self.view.setModel(self.model)
        self.view.setItemDelegate(EntryDelegate(self.view))
        self.view.setFrameShape(QListView.Shape.NoFrame)
        self.view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.setUniformItemSizes(True)
        self.view.setMouseTracking(True)
        self.view.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.view.setAccessibleName("Matching commands")
        self.view.entered.connect(self._point_at)
        self._pointer = QCursor.pos()
        self.view.clicked.connect(self._choose)
        self.nothing = QLabel()
        self.nothing.setProperty("role", "muted")
        self.nothing.setTextFormat(Qt.TextFormat.PlainText)
        self.column.setSpacing(SPACE_2)
        for widget in (self.field, self.nothing, self.view):
            self.column.addWidget(widget)

    def open(self, entries: Iterable[Entry], more: Iterable[Entry] = ()) -> None:
        """Show it over the middle of the window, near its top; close it if it is open. `more` are
        found below what is found of `entries` as well, and not listed until something is typed."""
        if not self.isHidden():
            self.close_and_return()
            return
        places = {name: place for place, name in enumerate(self._recent)}
        self._entries = sorted(entries, key=lambda entry: places.get(entry.id, len(places)))
        self._more = list(more)
        window = self._window.window()
        self._focus_before = window.focusWidget()
        self.setFixedWidth(min(WIDTH, window.width() - 2 * SPACE_2))
        self.field.clear()
        self._pointer = QCursor.pos()
        self._search()
        self.open_at(QPoint((window.width() - self.width()) // 2, window.height() // 10))

    def first_field(self) -> QWidget:
        return self.field

    def _search(self) -> None:
        query = self.field.text()
        entries = [*self._entries, *(self._more if query.strip() else ())]
        found = search(query, [entry.text for entry in entries])
        self.model.show_matches(entries, found)
        self.view.setCurrentIndex(self.model.first_enabled())
        self.nothing.setText(f"No command or setting matches “{query.strip()}”.")
        self.nothing.setVisible(not found)
        self.view.setVisible(bool(found))
        row_height = max(1, self.view.sizeHintForRow(0))
        room = (self._window.window().height() * 3 // 4) // row_height
        rows = min(len(found), MOST_ROWS, max(2, room - 1))
        self.view.setFixedHeight(rows * row_height + SPACE_1)
        self.adjustSize()

    def _point_at(self, index: QModelIndex) -> None:
        # rows that the keyboard scrolls under a pointer that lies still are not pointed at
        pointer, self._pointer = self._pointer, QCursor.pos()
        if pointer != self._pointer and self.model.flags(index) & Qt.ItemFlag.ItemIsEnabled:
            self.view.setCurrentIndex(index)

    def _move(self, rows: int) -> None:
        """Move to another available command."""
        last = sum(
            bool(self.model.flags(self.model.index(row)) & Qt.ItemFlag.ItemIsEnabled)
            for row in range(self.model.rowCount())
        ) - 1  # those that are not stand last
        if last >= 0:
            self._pointer = QCursor.pos()
            row = self.view.currentIndex().row() + rows
            self.view.setCurrentIndex(self.model.index(min(max(row, 0), last)))

    def _choose(self, index: QModelIndex) -> None:
        if not index.isValid() or not self.model.flags(index) & Qt.ItemFlag.ItemIsEnabled:
            return
        name = self.model.entry(index.row()).id
        self._recent = [name, *(other for other in self._recent if other != name)]
        self.close_and_return()
        self.chosen.emit(name)

    def close_and_return(self) -> None:
        """Close and restore the focus."""
        self.hide()
        # an editor may have closed, and be gone, because the palette took its focus
        if self._focus_before is not None and shiboken6.isValid(self._focus_before):
            self._focus_before.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and isinstance(event, QKeyEvent):
            key = Qt.Key(event.key())
            if event.type() == QEvent.Type.KeyPress:
                if key in _MOVES:
                    self._move(_MOVES[key])
                    return True
                if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                    self._choose(self.view.currentIndex())
                    return True
                if key == Qt.Key.Key_Escape:
                    self.close_and_return()
                    return True
        return super().eventFilter(watched, event)
