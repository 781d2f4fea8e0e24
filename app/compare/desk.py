"""Opens the window of a comparison, and keeps what runs while it is closed."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.commands import Command
from app.compare.runner import ComparisonRunner
from app.compare.window import CompareWindow
from app.engine_bridge import EngineBridge
from app.models.session import ModelSession
from app.panels.precision import PrecisionGuide
from app.settings_store import SettingsStore


class CompareDesk(QObject):
    def __init__(
        self,
        bridge: EngineBridge,
        guide: PrecisionGuide,
        window: QWidget,
        session: ModelSession,
        store: SettingsStore,
    ) -> None:
        super().__init__(window)
        self._bridge, self._guide, self._parent, self._store = bridge, guide, window, store
        self.runner = ComparisonRunner(bridge, guide.times, self, session)
        self.window: CompareWindow | None = None

    def commands(self) -> list[Command]:
        return [
            Command(
                "chat.compare", "Compare side by side…", self.show, "Chat", "Ctrl+Alt+P", "compare",
                section="reply", is_enabled=lambda: self._bridge.is_ready,
            )
        ]  # fmt: skip

    def show(self, prompt: str = "") -> None:
        """The window, with `prompt` written in it if one is given."""
        if self.window is None:
            if not self.runner.is_running:
                self.runner.forget()
            self.window = CompareWindow(
                self._bridge, self._guide, self.runner, self._store, self._parent
            )
            self.window.closed.connect(self._forget)
        if prompt:
            self.window.prompt.setPlainText(prompt)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()
        self.window.prompt.setFocus()

    def close(self) -> None:
        """With the main window this one goes."""
        if self.window is not None:
            self.window.close()
        self.runner.close()

    def _forget(self) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.deleteLater()
