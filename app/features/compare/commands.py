"""Opens the window of a comparison, and keeps what runs while it is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PySide6.QtWidgets import QWidget

from app.features.compare.broadcast import Broadcast
from app.features.compare.broadcast_replies import Reply
from app.features.compare.broadcast_window import BroadcastWindow
from app.features.compare.runner import ComparisonRunner
from app.features.compare.window import CompareWindow
from app.features.models.session import ModelSession
from app.features.tune.precision_rows import PrecisionGuide
from app.link.bridge import EngineBridge
from app.window.commands import Command
from app.window.settings_store import RecentModel, SettingsStore
from app.window.single_window import WindowDesk


class CompareDesk(WindowDesk[CompareWindow]):
    def __init__(
        self,
        bridge: EngineBridge,
        guide: PrecisionGuide,
        window: QWidget,
        session: ModelSession,
        store: SettingsStore,
    ) -> None:
        super().__init__(bridge, window, self._made)
        self._guide, self._store = guide, store
        self.runner = ComparisonRunner(bridge, guide.times, self, session)

    def commands(self) -> list[Command]:
        return [self._command("chat.compare", "Compare side by side…", "Ctrl+Alt+P", "compare")]

    def show(self, prompt: str = "") -> None:
        """The window, with `prompt` written in it if one is given."""
        window = self._opened()
        if prompt:
            window.prompt.setPlainText(prompt)
        self._to_front(window)
        window.prompt.setFocus()

    def show_sides(self, stands: Sequence[tuple[RecentModel, Mapping[str, Any]]]) -> None:
        """The window with a model and a precision on either side, left and right."""
        self.show()
        assert self.window is not None
        self.window.choose_sides(stands)

    def close(self) -> None:
        super().close()
        self.runner.close()

    def _made(self) -> CompareWindow:
        if not self.runner.is_running:
            self.runner.forget()
        made = CompareWindow(self._bridge, self._guide, self.runner, self._store, self._parent)
        made.closed.connect(self.forget)
        return made


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
