"""The command registry: menus, shortcuts, their overview and the palette are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby

from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMenu, QMenuBar, QWidget

from app.window.keymap import KeyMap
from widgets.controls.text import shortcut_texts
from widgets.palette.palette import Entry
from widgets.theme.icons import set_icon

PORTABLE = QKeySequence.SequenceFormat.PortableText
MENUS = ("File", "View", "Chat", "Tune", "Inspect", "Help")
LAST_SECTIONS = ("quit",)
"""Sections at the end of their menu."""


@dataclass(frozen=True, slots=True)
class Command:
    """One action of the user.

    id: "area.verb", unique. where: the menu. shortcut: the default one; the key map may have
    another. section: commands between two separators. submenu: its name, at the place of its first
    command. shows_page: the command's page comes to the front first. is_checked makes it checkable;
    choice names a group of which one is checked. is_enabled, is_checked and why_not (the reason why
    it is disabled; "" if it is not) are called when the menu opens. keywords: further words for the
    palette's search.
    """

    id: str
    text: str
    callback: Callable[[], object]
    where: str
    shortcut: str = ""
    icon: str = ""
    section: str = ""
    choice: str = ""
    submenu: str = ""
    shows_page: bool = False
    is_checked: Callable[[], bool] | None = None
    is_enabled: Callable[[], bool] | None = None
    why_not: Callable[[], str] | None = None
    keywords: str = ""


class CommandRegistry:
    """Commands in order of addition, and their actions on one window. `keymap` has their keys."""

    def __init__(self, window: QWidget, keymap: KeyMap | None = None) -> None:
        self._window = window
        self.keymap = keymap or KeyMap()
        self._commands: dict[str, Command] = {}
        self._actions: dict[str, QAction] = {}
        self._groups: dict[str, QActionGroup] = {}

    def add(self, *commands: Command) -> None:
        for command in commands:
            self._check(command)
            self._commands[command.id] = command
            self._actions[command.id] = self._make_action(command)
        self.keymap.declare({command.id: command.shortcut for command in commands})
        self.take_keys()

    def remove(self, command_id: str) -> None:
        """Remove a command with its keys and its action; Qt removes it from menus."""
        del self._commands[command_id]
        self._actions.pop(command_id).deleteLater()
        self.keymap.withdraw(command_id)
        self.take_keys()

    def take_keys(self) -> None:
        """Apply the key map to all actions."""
        for command_id, action in self._actions.items():
            keys = self.keymap.keys(command_id)
            if action.shortcut().toString(PORTABLE) != keys:
                action.setShortcut(QKeySequence(keys))
        shortcut_texts().tell({command_id: self.words(command_id) for command_id in self._actions})

    def words(self, command_id: str) -> str:
        """A command's shortcut in the platform's notation."""
        return native(self.keymap.keys(command_id))

    def __contains__(self, command_id: object) -> bool:
        return command_id in self._commands

    def command(self, command_id: str) -> Command:
        return self._commands[command_id]

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def action(self, command_id: str) -> QAction:
        return self._actions[command_id]

    def run(self, command_id: str) -> None:
        """Run it as the user would; a disabled command does nothing."""
        self.refresh()
        self._actions[command_id].trigger()

    def refresh(self, commands: Iterable[Command] | None = None) -> None:
        """Update enabled and checked states of `commands`, or of all."""
        for command in self if commands is None else commands:
            if (action := self._actions.get(command.id)) is None:
                continue  # a page may change before its commands are added
            why_not = command.why_not() if command.why_not is not None else ""
            if command.is_enabled is not None or command.why_not is not None:
                is_enabled = command.is_enabled is None or command.is_enabled()
                action.setEnabled(is_enabled and not why_not)
            if command.why_not is not None:
                action.setToolTip(why_not or command.text)
            if command.is_checked is not None:
                action.setChecked(command.is_checked())

    def fill(self, bar: QMenuBar) -> None:
        """Make the menus."""
        for name in dict.fromkeys([*MENUS, *(c.where for c in self)]):
            commands = [c for c in self if c.where == name]
            if not commands:
                continue
            menu = bar.addMenu(f"&{name}")  # Alt and its letter open it
            menu.setToolTipsVisible(True)
            menu.aboutToShow.connect(self.refresh)
            self._fill_menu(menu, commands)

    def entries(self) -> list[Entry]:
        """Every command as the palette shows it, with its current state."""
        self.refresh()
        return [
            Entry(
                command.id, command.text, command.where, self.words(command.id),
                self._actions[command.id].isEnabled(),
                command.is_checked is not None and self._actions[command.id].isChecked(),
                command.why_not() if command.why_not is not None else "", command.keywords,
            )
            for command in self
        ]  # fmt: skip

    def shortcuts(self) -> dict[str, list[tuple[str, str]]]:
        """Menu -> (text, shortcut in the platform's notation) of the commands that have one."""
        table: dict[str, list[tuple[str, str]]] = {}
        places = {name: place for place, name in enumerate(MENUS)}
        for command in sorted(self, key=lambda c: places.get(c.where, len(places))):
            if words := self.words(command.id):
                table.setdefault(command.where, []).append((command.text.rstrip("…"), words))
        return table

    def _fill_menu(self, menu: QMenu, commands: list[Command]) -> None:
        sections = sorted(dict.fromkeys(c.section for c in commands), key=LAST_SECTIONS.count)
        mine = {c.section: c.submenu for c in commands if c.submenu}
        for number, section in enumerate(sections):
            if number:
                menu.addSeparator()
            for command in commands:
                if command.section == section and not command.submenu:
                    menu.addAction(self._actions[command.id])
            if section in mine:
                self._add_submenu(menu, mine[section])

    def _add_submenu(self, menu: QMenu, name: str) -> None:
        """Rebuilt when it opens: its commands change."""
        submenu = menu.addMenu(name)
        submenu.setToolTipsVisible(True)
        fill = partial(self._refill, submenu, name)
        submenu.aboutToShow.connect(fill)
        fill()

    def _refill(self, submenu: QMenu, name: str) -> None:
        self.refresh()
        submenu.clear()
        commands = sorted((c for c in self if c.submenu == name), key=lambda c: not c.choice)
        for is_plain, group in groupby(commands, key=lambda c: not c.choice):
            if is_plain:
                submenu.addSeparator()  # below the choices
            for command in group:
                submenu.addAction(self._actions[command.id])

    def _make_action(self, command: Command) -> QAction:
        action = QAction(command.text, self._window)
        action.setObjectName(command.id)
        if command.icon:
            set_icon(action, command.icon)
        if command.is_checked is not None:
            action.setCheckable(True)
        if command.choice:
            self._group(command.choice).addAction(action)
        action.triggered.connect(lambda: command.callback())
        self._window.addAction(action)  # so that the shortcut works without the menu
        return action

    def _group(self, name: str) -> QActionGroup:
        if name not in self._groups:
            self._groups[name] = QActionGroup(self._window)
        return self._groups[name]

    def _check(self, command: Command) -> None:
        if command.id in self._commands:
            raise ValueError(f"Duplicate command {command.id!r}.")
        taken = {c.shortcut: c.id for c in self if c.shortcut}
        if command.shortcut in taken:
            raise ValueError(
                f"{command.id!r} and {taken[command.shortcut]!r} share {command.shortcut}."
            )


@cache
def native(shortcut: str) -> str:
    """A shortcut in the platform's notation."""
    return QKeySequence(shortcut).toString(QKeySequence.SequenceFormat.NativeText)
