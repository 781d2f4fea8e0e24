"""`FolderList` and `PathControl`: folders to search, and the choice of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QListWidget, QListWidgetItem, QSizePolicy, QWidget

from widgets.controls.combo import ElidedCombo
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import STRETCH, button, dressed, hbox, vbox
from widgets.theme.theme import SPACE_2

EMPTY = "No folders"
ROWS = 4


class FolderList(QWidget):
    """A tuple of paths; missing folders are marked."""

    changed = Signal(object)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.list = dressed(QListWidget(), name)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.list.setFixedHeight(ROWS * (self.fontMetrics().height() + SPACE_2) + 2)
        self.list.itemSelectionChanged.connect(self._show_state)
        self.add = button("Add folder…", self._ask, "Search another folder for models")
        tip = "Remove from the list without deleting files (Delete)"
        self.remove = button("Remove", self._remove, tip)
        for one in (self.add, self.remove):
            one.setAutoDefault(False)
        LocalKeys(self.list, {"Del": self._remove})
        vbox(self.list, hbox(self.add, self.remove, STRETCH), of=self)
        self.set_value(())

    def value(self) -> tuple[str, ...]:
        items = (self.list.item(row) for row in range(self.list.count()))
        return tuple(p for item in items if (p := item.data(Qt.ItemDataRole.UserRole)))

    def set_value(self, value: Any) -> None:
        """Show these folders, without a signal."""
        if tuple(value) == self.value() and self.list.count():
            return
        self.list.clear()
        for path in value:
            is_there = Path(path).is_dir()
            item = QListWidgetItem(path if is_there else f"{path} (missing)", self.list)
            item.setData(Qt.ItemDataRole.UserRole, path)
            item.setToolTip(path)
        if not value:
            QListWidgetItem(EMPTY, self.list).setFlags(Qt.ItemFlag.NoItemFlags)
        self._show_state()

    def add_folder(self, path: str) -> None:
        """Add a folder, as the user."""
        if path and path not in self.value():
            self._become((*self.value(), path))

    def _ask(self) -> None:
        dialog = QFileDialog(self, "Choose model folder", str(Path.home()))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self.add_folder)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _remove(self) -> None:
        chosen = {item.data(Qt.ItemDataRole.UserRole) for item in self.list.selectedItems()}
        if chosen:
            self._become(tuple(path for path in self.value() if path not in chosen))

    def _become(self, value: tuple[str, ...]) -> None:
        self.set_value(value)
        self.changed.emit(value)

    def _show_state(self) -> None:
        self.remove.setEnabled(bool(self.list.selectedItems()))


_OTHER = object()


class PathControl(ElidedCombo):
    """A combo box of known folders by title, then "Other folder…", which emits `browse_wanted`.
    `none_text`: entry for no folder."""

    changed = Signal(object)  # str | None
    browse_wanted = Signal()

    def __init__(self, none_text: str) -> None:
        super().__init__()
        self._none_text = none_text
        self._value: str | None = None
        self.known: list[tuple[str, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.activated.connect(self._on_activated)
        self._fill()

    def value(self) -> str | None:
        return self._value

    def set_value(self, value: Any) -> None:
        if value != self._value:
            self._value = value
            self._fill()

    def set_known(self, known: Sequence[tuple[str, str]]) -> None:
        """Offer these folders, as (path, title)."""
        if list(known) != self.known:
            self.known = list(known)
            self._fill()

    def choose(self, path: str) -> None:
        """Select a folder from a dialog, as the user."""
        self.set_value(path)
        self.changed.emit(path)

    def _fill(self) -> None:
        self.clear()
        self.addItem(self._none_text, None)
        known = self.known
        if self._value is not None and self._value not in [path for path, _ in known]:
            known = [*known, (self._value, Path(self._value).name or self._value)]
        for path, title in known:
            self.addItem(title, path)
            self.setItemData(self.count() - 1, path, Qt.ItemDataRole.ToolTipRole)
        self.insertSeparator(self.count())
        self.addItem("Other folder…", _OTHER)
        self._show_value()

    def _show_value(self) -> None:
        self.setCurrentIndex(0 if self._value is None else self.findData(self._value))

    def _on_activated(self, index: int) -> None:
        chosen = self.itemData(index)
        if chosen is _OTHER:
            self._show_value()
            self.browse_wanted.emit()
        elif chosen != self._value:
            self._value = chosen
            self.changed.emit(chosen)
