"""The commands with their keys, as a table that is filtered by words."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt
from PySide6.QtGui import QFont

from app.commands import Command, CommandRegistry, native
from widgets.theme import ui_font

Index = QModelIndex | QPersistentModelIndex
HEADINGS = ("Command", "Menu", "Keys", "Default")
COMMAND, MENU, KEYS, DEFAULT = range(4)


class CommandTable(QAbstractTableModel):
    """A row for each command that was found; commands whose keys were changed stand out."""

    def __init__(self, registry: CommandRegistry, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._registry = registry
        self._rows: list[Command] = []
        self.find("")

    def find(self, text: str) -> int:
        """Keep the commands in which every word of `text` occurs; how many these are."""
        self.beginResetModel()
        words = text.lower().split()
        self._rows = [c for c in self._registry if all(w in self._text(c) for w in words)]
        self.endResetModel()
        return len(self._rows)

    def _text(self, command: Command) -> str:
        keys = self._registry.words(command.id)
        return f"{command.text} {command.where} {keys} {command.id}".lower()

    def renew(self) -> None:
        """Keys have changed."""
        if self._rows:
            last = self.index(len(self._rows) - 1, DEFAULT)
            self.dataChanged.emit(self.index(0, 0), last)

    def command_at(self, row: int) -> Command | None:
        return self._rows[row] if 0 <= row < len(self._rows) else None

    def row_of(self, command_id: str) -> int:
        """-1 where it was not found."""
        return next((i for i, c in enumerate(self._rows) if c.id == command_id), -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(HEADINGS)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return HEADINGS[section]
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        command = self._rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._cell(command, index.column())
        is_changed = self._registry.keymap.is_changed(command.id)
        if role == Qt.ItemDataRole.FontRole and index.column() == KEYS and is_changed:
            return ui_font("body", QFont.Weight.DemiBold)
        if role == Qt.ItemDataRole.ToolTipRole:
            return f"{command.id}, changed" if is_changed else command.id
        return None

    def _cell(self, command: Command, column: int) -> str:
        keymap = self._registry.keymap
        return (
            command.text.rstrip("…"),
            command.where,
            native(keymap.keys(command.id)),
            native(keymap.default(command.id)),
        )[column]
