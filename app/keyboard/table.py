"""The commands with their keys, as a table that is filtered by words."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QFont

from app.commands import Command, CommandRegistry, native
from widgets.row_table import Index, RowTable
from widgets.theme import ui_font

COMMAND, MENU, KEYS, DEFAULT = range(4)


class CommandTable(RowTable[Command]):
    """A row for each command that was found; commands whose keys were changed stand out."""

    HEADINGS = ("Command", "Menu", "Keys", "Default")

    def __init__(self, registry: CommandRegistry, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._registry = registry
        self.find("")

    def find(self, text: str) -> int:
        """Keep the commands in which every word of `text` occurs; how many these are."""
        words = text.lower().split()
        self.set_rows([c for c in self._registry if all(w in self._text(c) for w in words)])
        return len(self._rows)

    def _text(self, command: Command) -> str:
        keys = self._registry.words(command.id)
        return f"{command.text} {command.where} {keys} {command.id}".lower()

    def renew(self) -> None:
        """Keys have changed."""
        if self._rows:
            last = self.index(len(self._rows) - 1, DEFAULT)
            self.dataChanged.emit(self.index(0, 0), last)

    def row_of(self, command_id: str) -> int:
        """-1 where it was not found."""
        return next((i for i, c in enumerate(self._rows) if c.id == command_id), -1)

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
