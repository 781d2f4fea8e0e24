"""Opens the window of a broadcast, and makes chats of its replies."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.broadcast.replies import Reply
from app.broadcast.runner import Broadcast
from app.broadcast.window import BroadcastWindow
from app.commands import Command
from app.engine_bridge import EngineBridge


class BroadcastDesk(QObject):
    """`keep(reply, model)` makes a chat of a reply; it is set by who owns the chats."""

    def __init__(self, bridge: EngineBridge, window: QWidget) -> None:
        super().__init__(window)
        self._bridge, self._parent = bridge, window
        self.broadcast = Broadcast(bridge, self)
        self.keep: Callable[[Reply, str], None] = lambda reply, model: None
        self.window: BroadcastWindow | None = None

    def commands(self) -> list[Command]:
        return [
            Command(
                "chat.broadcast", "Broadcast a prompt…", self.show, "Chat", "Ctrl+Alt+B", "branch",
                section="reply", is_enabled=lambda: self._bridge.is_ready,
            )
        ]  # fmt: skip

    def show(self) -> None:
        if self.window is None:
            self.window = BroadcastWindow(self._bridge, self.broadcast, self._keep, self._parent)
            self.window.closed.connect(self._forget)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()
        self.window.prompt.setFocus()

    def close(self) -> None:
        """With the main window this one goes."""
        if self.window is not None:
            self.window.close()

    def _keep(self, reply: Reply) -> None:
        self.keep(reply, self.broadcast.model)

    def _forget(self) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.deleteLater()
