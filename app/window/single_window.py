"""A secondary window with one instance, opened by a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QDialog, QWidget

from app.link.bridge import EngineBridge
from app.window.commands import Command

Window = TypeVar("Window", bound=QDialog)


class SingleWindow(QObject, Generic[Window]):
    """`window` is None while closed. `make` creates it and connects its `closed` to `forget`."""

    def __init__(
        self, bridge: EngineBridge, parent: QWidget, make: Callable[[], Window]
    ) -> None:
        super().__init__(parent)
        self._bridge, self._parent, self._make = bridge, parent, make
        self.window: Window | None = None

    def show(self) -> None:
        self._to_front(self._opened())

    def close(self) -> None:
        """The main window closes."""
        if self.window is not None:
            self.window.close()

    def forget(self) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.deleteLater()

    def _opened(self) -> Window:
        if self.window is None:
            self.window = self._make()
        return self.window

    def _to_front(self, window: Window) -> None:
        window.show()
        window.raise_()
        window.activateWindow()

    def _command(self, name: str, text: str, keys: str, icon: str) -> Command:
        """The command that opens it, enabled while a model is open."""
        return Command(
            name, text, self.show, "Chat", keys, icon, section="reply",
            is_enabled=lambda: self._bridge.is_ready,
        )  # fmt: skip
