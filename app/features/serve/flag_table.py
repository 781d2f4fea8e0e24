"""`FlagTable`: the settings of an engine's own parser: searched, typed, each with its default."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QHeaderView, QLineEdit, QTreeWidget, QTreeWidgetItem, QWidget

from app.managed.arguments import Flag, Flags
from widgets.controls.layouts import dressed, vbox, wrapped
from widgets.theme.theme import SPACE_1

OWN = ("--host", "--port", "--model", "--model-path", "--help", "--config")
"""What the window sets itself."""
FLAG, VALUE, DEFAULT = range(3)
ON = "on"
HEIGHT = 260
NO_FLAGS = "Settings of the engine appear here once they are read from its own parser."
RESTART = "Every setting here needs a restart."


class FlagTable(QWidget):
    """`changed`: a value was typed. Values that differ from the default are in `settings`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._flags: Flags | None = None
        self._settings: dict[str, str] = {}
        self.search = dressed(QLineEdit(), "Search engine settings")
        self.search.setPlaceholderText("Search settings: parallel, memory, kv…")
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(self._filter)
        self.tree = dressed(QTreeWidget(), "Engine settings")
        self.tree.setHeaderLabels(["Setting", "Value", "Default"])
        self.tree.setRootIsDecorated(False)
        self.tree.setUniformRowHeights(True)
        self.tree.setMinimumHeight(HEIGHT)
        header = self.tree.header()
        header.setStretchLastSection(False)
        for column, width in ((VALUE, 96), (DEFAULT, 76)):
            header.resizeSection(column, width)
        header.setSectionResizeMode(FLAG, QHeaderView.ResizeMode.Stretch)
        self.tree.itemDoubleClicked.connect(lambda item, _: self.tree.editItem(item, VALUE))
        self.tree.itemActivated.connect(lambda item, _: self.tree.editItem(item, VALUE))
        self.tree.itemChanged.connect(self._on_item)
        self.note = wrapped("small", NO_FLAGS)
        vbox(self.search, self.tree, self.note, of=self, spacing=SPACE_1)
        self.show_flags(None)

    @property
    def settings(self) -> dict[str, str]:
        """Texts by flag."""
        return dict(self._settings)

    @property
    def problem(self) -> str:
        return "" if self._flags is None else self._flags.problem(self._settings)

    def show_settings(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._fill()

    def show_flags(self, flags: Flags | None) -> None:
        self._flags = flags
        for widget in (self.search, self.tree):
            widget.setVisible(flags is not None)
        self._fill()

    def _fill(self) -> None:
        flags = () if self._flags is None else self._flags.flags
        with QSignalBlocker(self.tree):
            self.tree.clear()
            for flag in (one for one in flags if one.flag not in OWN):
                item = QTreeWidgetItem([flag.flag, self._shown(flag), flag.default])
                item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
                item.setData(FLAG, Qt.ItemDataRole.UserRole, flag)
                for column in (FLAG, VALUE, DEFAULT):
                    item.setToolTip(column, _tip(flag))
                self.tree.addTopLevelItem(item)
        self._filter(self.search.text())
        self._say()

    def _shown(self, flag: Flag) -> str:
        for name in (flag.flag, *flag.aliases):
            if name in self._settings:
                off = name.startswith("--no-") and name in flag.aliases
                return ("off" if off else ON) if flag.is_switch else self._settings[name]
        return ""

    def _filter(self, words: str) -> None:
        for row in range(self.tree.topLevelItemCount()):
            item = self.tree.topLevelItem(row)
            if item is not None:
                flag: Flag = item.data(FLAG, Qt.ItemDataRole.UserRole)
                item.setHidden(not flag.matches(words))

    def _on_item(self, item: QTreeWidgetItem, column: int) -> None:
        flag: Flag = item.data(FLAG, Qt.ItemDataRole.UserRole)
        typed = item.text(column)
        if column != VALUE:  # names and defaults are no input
            with QSignalBlocker(self.tree):
                item.setText(column, flag.flag if column == FLAG else flag.default)
            return
        for name in (flag.flag, *flag.aliases):
            self._settings.pop(name, None)
        self._settings |= _setting(flag, typed.strip())
        self._say()
        self.changed.emit()

    def _say(self) -> None:
        known = self._flags
        if known is None:
            self.note.setText(NO_FLAGS)
            return
        count = self.tree.topLevelItemCount()
        changed = f" {len(self._settings)} changed." if self._settings else ""
        text = f"{count} settings of version {known.version}.{changed} {RESTART}"
        self.note.setText(self.problem or text)


def _setting(flag: Flag, typed: str) -> dict[str, str]:
    """What a typed value adds to the command line; nothing for the default."""
    if not typed:
        return {}
    if not flag.is_switch:
        return {} if typed == flag.default else {flag.flag: typed}
    is_on = typed.casefold() in (ON, "true", "yes", "1")
    off = next((one for one in flag.aliases if one.startswith("--no-")), None)
    if is_on:
        return {} if flag.default == "True" else {flag.flag: ""}
    return {off: ""} if off is not None and flag.default != "False" else {}


def _tip(flag: Flag) -> str:
    parts = [flag.group, flag.help]
    if flag.choices:
        parts.append(f"One of: {', '.join(flag.choices)}")
    if flag.is_switch:
        parts.append("on or off")
    return "\n".join(part for part in parts if part)
