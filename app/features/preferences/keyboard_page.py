"""Keyboard shortcuts: every command with its keys, filtered by words and changed by the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QEvent, QKeyCombination, QObject, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import QKeySequenceEdit, QLabel, QLineEdit, QTableView, QWidget

from app.storage.json_file import NotWrittenError
from app.window.commands import PORTABLE, Command, CommandRegistry, native
from app.window.keymap import KeyMap, objection
from widgets.controls.layouts import button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import FittedColumns, Index, RowTable, dress_table
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, restyle, theme_notifier, ui_font

COMMAND, MENU, KEYS, DEFAULT = range(4)
_NAME = 150
"""Pixels for the names of commands at the default text size, at least."""


class CommandTable(RowTable[Command]):
    """A row for each command found; changed keys are bold."""

    HEADINGS = ("Command", "Menu", "Shortcut", "Default")

    def __init__(self, registry: CommandRegistry, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._registry = registry
        self.find("")

    def find(self, text: str) -> int:
        """Show the commands that have every word of `text`; their number."""
        words = text.lower().split()
        self.set_rows([c for c in self._registry if all(w in self._text(c) for w in words)])
        return len(self._rows)

    def _text(self, command: Command) -> str:
        keys = self._registry.words(command.id)
        return f"{command.text} {command.where} {keys} {command.id}".lower()

    def renew(self) -> None:
        if self._rows:
            last = self.index(len(self._rows) - 1, DEFAULT)
            self.dataChanged.emit(self.index(0, 0), last)

    def row_of(self, command_id: str) -> int:
        """-1 if it is not shown."""
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
            return f"{command.id} (customized)" if is_changed else command.id
        return None

    def _cell(self, command: Command, column: int) -> str:
        keymap = self._registry.keymap
        return (
            command.text.rstrip("…"),
            command.where,
            native(keymap.keys(command.id)),
            native(keymap.default(command.id)),
        )[column]


NOTHING_FOUND = "No matching commands."
CHOOSE = "Select a command to change its shortcut."
NO_KEYS = ("Backspace", "Del")
"""These alone take the keys of a command away."""


class KeyboardPage(QWidget):
    """`changed`: the keys of a command changed."""

    changed = Signal()

    def __init__(self, registry: CommandRegistry, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._registry = registry
        self._wanted = ""  # keys of another command
        self.table = CommandTable(registry, self)
        self.view = _make_view(self.table)
        self.view.installEventFilter(self)
        self.edit = _make_edit()
        self.edit.editingFinished.connect(self._on_pressed)
        self.reset = button("Reset", self._reset, "Reset this command to its default shortcut")
        tip = "Reset all commands to their default shortcuts"
        self.reset_all = button("Reset all", lambda: self._change(KeyMap.reset_all), tip)
        tip = "Assign the shortcut to this command instead"
        self.take_over = button("Reassign", lambda: self._bind(self._wanted), tip)
        self.leave = button("Cancel", self._show, "Keep the current assignment")
        self._chosen = ElidedLine("text")
        self._message = QLabel(textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self.view.doubleClicked.connect(lambda index: self.edit.setFocus())
        vbox(
            (self.view, 1), hbox((self._chosen, 2), (self.edit, 3), self.reset, self.reset_all),
            hbox((self._message, 1), self.take_over, self.leave), of=self, spacing=SPACE_3,
        )  # fmt: skip
        self.view.selectionModel().currentRowChanged.connect(lambda *_: self._show())
        theme_notifier().changed.connect(self._fit_rows)
        self._fit_rows()
        self.view.selectRow(0)

    @property
    def command(self) -> Command | None:
        return self.table.row_at(self.view.currentIndex().row())

    @property
    def message(self) -> str:
        return self._message.text()

    def search(self, text: str) -> int:
        """Show the commands that have every word of `text`; their number."""
        chosen = self.command
        count = self.table.find(text)
        row = self.table.row_of(chosen.id) if chosen is not None else -1
        self.view.selectRow(max(row, 0))
        self._show()
        return count

    def choose(self, command_id: str) -> None:
        self.view.selectRow(self.table.row_of(command_id))

    # What the user does ------------------------------------------------------------------------

    def _on_pressed(self) -> None:
        """Also after Esc, or when the focus leaves: then there are none."""
        pressed = self.edit.keySequence().toString(PORTABLE)
        if pressed:
            self.edit.clear()
            keys = pressed.replace("Num+", "").replace("Backtab", "Tab")
            self.give("" if keys in NO_KEYS else keys)

    def give(self, keys: str) -> None:
        """Give `keys` to the selected command; if it cannot have them, say why."""
        command = self.command
        if command is None:
            return
        self._show()
        if keys and (reason := objection(keys)):
            self._say(reason, "warning")
            return
        owner = self._registry.keymap.owner(keys)
        if not owner or owner == command.id:
            self._bind(keys)
            return
        self._wanted = keys
        other = self._registry.command(owner)
        name = other.text.rstrip("…")
        self._say(f"{native(keys)} is assigned to “{name}” ({other.where}).", "warning")
        for one in (self.take_over, self.leave):
            one.show()
        self.take_over.setFocus()

    def _bind(self, keys: str) -> None:
        if self.command is not None:
            command_id = self.command.id
            self._change(lambda keymap: keymap.bind(command_id, keys))

    def _reset(self) -> None:
        if self.command is not None:
            command_id = self.command.id
            self._change(lambda keymap: keymap.reset(command_id))

    def _change(self, do: Callable[[KeyMap], None]) -> None:
        problem = ""
        try:
            do(self._registry.keymap)
        except NotWrittenError as error:
            problem = f"Changed for this session only: {error.cause} {error.remedy}"
        self._registry.take_keys()
        self.table.renew()
        self._show()
        self.view.setFocus()
        if problem:
            self._say(problem, "error")
        self.changed.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.edit.setFocus()
                return True
            if event.key() == Qt.Key.Key_Delete and self.command is not None:
                self._bind("")
                return True
        return False

    # Showing -----------------------------------------------------------------------------------

    def _fit_rows(self) -> None:
        self.view.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_3)

    def _say(self, text: str, role: str = "muted") -> None:
        self._message.setText(text)
        restyle(self._message, role=role)

    def _show(self) -> None:
        """The selected command, and which buttons it has."""
        command, keymap = self.command, self._registry.keymap
        self._wanted = ""
        for one in (self.take_over, self.leave):
            one.hide()
        is_changed = command is not None and keymap.is_changed(command.id)
        self._chosen.set_text(command.text.rstrip("…") if command is not None else "")
        self.edit.setEnabled(command is not None)
        self.reset.setEnabled(is_changed)
        self.reset_all.setEnabled(bool(keymap.num_changed))
        count = keymap.num_changed
        if not self.table.rowCount():
            self._say(NOTHING_FOUND)
        elif command is None:
            self._say(CHOOSE)
        else:
            changed = f"{count} of {sum(1 for _ in keymap)} commands have custom shortcuts."
            self._say(changed if count else "All commands use their default shortcuts.")


def _make_edit() -> QKeySequenceEdit:
    """Takes one combination; Esc, Tab and Shift+Tab leave it."""
    edit = dressed(QKeySequenceEdit(), "New shortcut")
    edit.setMaximumSequenceLength(1)
    leave = (Qt.Key.Key_Escape, Qt.Key.Key_Tab, Qt.Key.Key_Backtab)
    combinations = [QKeyCombination(key) for key in leave]
    combinations.append(QKeyCombination(Qt.KeyboardModifier.ShiftModifier, Qt.Key.Key_Backtab))
    edit.setFinishingKeyCombinations(combinations)
    line = edit.findChild(QLineEdit)  # it has the focus
    if line is not None:
        line.setAccessibleName("New shortcut")
        line.setAccessibleDescription("Press the new shortcut. Backspace removes it, Esc cancels.")
    return edit


def _make_view(table: CommandTable) -> QTableView:
    view = QTableView()
    view.setModel(table)
    dress_table(view, "Commands and shortcuts")
    others = (MENU, KEYS, DEFAULT)

    def widths() -> dict[int, int]:
        return {COMMAND: scaled(_NAME)} | {each: view.sizeHintForColumn(each) for each in others}

    FittedColumns(view.horizontalHeader(), widths, widest=COMMAND)
    return view
