"""`PathControl`: a folder out of a few that are known, or another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QSizePolicy

from widgets.elided_combo import ElidedCombo

_OTHER = object()


class PathControl(ElidedCombo):
    """The known folders by their titles, then "Other folder…", which asks by `browse_wanted`.
    `none_text` stands for no folder."""

    changed = Signal(object)  # str | None
    browse_wanted = Signal()

    def __init__(self, none_text: str) -> None:
        super().__init__()
        self._none_text = none_text
        self._value: str | None = None
        self._known: list[tuple[str, str]] = []
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
        """Folders to choose from, as (path, title)."""
        if list(known) != self._known:
            self._known = list(known)
            self._fill()

    @property
    def known(self) -> Sequence[tuple[str, str]]:
        return self._known

    def choose(self, path: str) -> None:
        """The user chose a folder in a dialog."""
        self.set_value(path)
        self.changed.emit(path)

    def _fill(self) -> None:
        self.clear()
        self.addItem(self._none_text, None)
        known = self._known
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
