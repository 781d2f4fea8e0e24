"""What the program's settings do: whoever has to act says so once, and is told from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject

from app.preferences.values import Preferences


class Effects(QObject):
    """Setting -> what is to be done with its value."""

    def __init__(self, preferences: Preferences, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._preferences = preferences
        self._by_name: dict[str, list[Callable[[Any], object]]] = {}
        preferences.changed.connect(self._on_changed)

    def bind(self, name: str, do: Callable[[Any], object]) -> None:
        """Do it with the value that `name` has now, and with every later one."""
        do(self._preferences.get(name))
        self.follow(name, do)

    def follow(self, name: str, do: Callable[[Any], object]) -> None:
        """Do it with every later value."""
        self._by_name.setdefault(name, []).append(do)

    def _on_changed(self, name: str) -> None:
        for do in self._by_name.get(name, ()):
            do(self._preferences.get(name))
