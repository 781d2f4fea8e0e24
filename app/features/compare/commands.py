"""Commands that open the windows of a comparison and of a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.features.compare.broadcast_window import BroadcastWindow
from app.features.compare.replies import Reply
from app.features.compare.reply_view import PromptWindow
from app.features.compare.requests import Broadcast
from app.features.compare.runner import ComparisonRunner
from app.features.compare.window import CompareWindow
from app.features.models.session import ModelSession
from app.features.tune.precision_rows import PrecisionGuide
from app.link.bridge import EngineBridge
from app.window.commands import Command
from app.window.settings_store import RecentModel, SettingsStore

Window = TypeVar("Window", bound=PromptWindow)


class SingleWindow(QObject, Generic[Window]):
    """At most one window, which `make` creates; `window` is None while it is closed."""

    def __init__(self, bridge: EngineBridge, parent: QWidget, make: Callable[[], Window]) -> None:
        super().__init__(parent)
        self._bridge, self._make = bridge, make
        self.window: Window | None = None

    def show(self) -> Window:
        if self.window is None:
            self.window = self._make()
            self.window.closed.connect(self._forget)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()
        self.window.prompt.setFocus()
        return self.window

    def close(self) -> None:
        """Called when the main window closes."""
        if self.window is not None:
            self.window.close()

    def _forget(self) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.deleteLater()

    def _command(self, name: str, text: str, keys: str, icon: str) -> Command:
        """A command that shows the window, enabled while a model is open."""
        return Command(
            name, text, self.show, "Chat", keys, icon, section="reply",
            is_enabled=lambda: self._bridge.is_ready,
        )  # fmt: skip


class CompareManager(SingleWindow[CompareWindow]):
    """Opens the comparison window; its runner outlives the window."""

    def __init__(
        self,
        bridge: EngineBridge,
        guide: PrecisionGuide,
        window: QWidget,
        session: ModelSession,
        store: SettingsStore,
    ) -> None:
        super().__init__(bridge, window, self._make_window)
        self._guide, self._store, self._parent = guide, store, window
        self.runner = ComparisonRunner(bridge, guide.times, session, self)

    def commands(self) -> list[Command]:
        return [self._command("chat.compare", "Compare side by side…", "Ctrl+Alt+P", "compare")]

    def show(self, prompt: str = "") -> CompareWindow:
        """Open the window, with `prompt` if given."""
        window = super().show()
        if prompt:
            window.prompt.setPlainText(prompt)
        return window

    def show_sides(self, wanted: Sequence[tuple[RecentModel, Mapping[str, Any]]]) -> None:
        """Open the window with a model and a precision on the left and on the right."""
        self.show().choose_sides(wanted)

    def close(self) -> None:
        super().close()
        self.runner.close()

    def _make_window(self) -> CompareWindow:
        if not self.runner.is_running:
            self.runner.forget()
        return CompareWindow(self._bridge, self._guide, self.runner, self._store, self._parent)


class BroadcastManager(SingleWindow[BroadcastWindow]):
    """Opens the broadcast window. `keep(reply, model)` turns a reply into a chat."""

    broadcast: Broadcast

    def __init__(
        self, bridge: EngineBridge, window: QWidget, keep: Callable[[Reply, str], None]
    ) -> None:
        keep_one = lambda reply: keep(reply, self.broadcast.model)
        make = lambda: BroadcastWindow(bridge, self.broadcast, keep_one, window)
        super().__init__(bridge, window, make)
        self.broadcast = Broadcast(bridge, self)

    def commands(self) -> list[Command]:
        return [self._command("chat.broadcast", "Broadcast a prompt…", "Ctrl+Alt+B", "branch")]
