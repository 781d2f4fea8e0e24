"""Opens the window of a broadcast, and makes chats of its replies."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from app.broadcast.replies import Reply
from app.broadcast.runner import Broadcast
from app.broadcast.window import BroadcastWindow
from app.commands import Command
from app.engine_bridge import EngineBridge
from app.window_desk import WindowDesk


class BroadcastDesk(WindowDesk[BroadcastWindow]):
    """`keep(reply, model)` makes a chat of a reply; it is set by who owns the chats."""

    def __init__(self, bridge: EngineBridge, window: QWidget) -> None:
        super().__init__(bridge, window, self._made)
        self.broadcast = Broadcast(bridge, self)
        self.keep: Callable[[Reply, str], None] = lambda reply, model: None

    def commands(self) -> list[Command]:
        return [self._command("chat.broadcast", "Broadcast a prompt…", "Ctrl+Alt+B", "branch")]

    def show(self) -> None:
        window = self._opened()
        self._to_front(window)
        window.prompt.setFocus()

    def _made(self) -> BroadcastWindow:
        made = BroadcastWindow(self._bridge, self.broadcast, self._keep, self._parent)
        made.closed.connect(self.forget)
        return made

    def _keep(self, reply: Reply) -> None:
        self.keep(reply, self.broadcast.model)
