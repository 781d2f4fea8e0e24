"""`SecondEngine`: an engine beside the one of the window, for as long as a comparison needs it."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

from app.engine_bridge import EngineBridge
from engine import messages
from engine.config import EngineConfig

_END_S = 5.0


class SecondEngine(QObject):
    """`ready(Loaded)`; `failed(ErrorInfo, cancelled)`: it was not loaded; `stopped(ErrorInfo)`: it
    crashed."""

    ready = Signal(object)
    failed = Signal(object, bool)
    stopped = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self.bridge = bridge
        bridge.loaded.connect(self.ready)
        bridge.load_failed.connect(self._on_failed)
        bridge.crashed.connect(lambda event: self.stopped.emit(event.error))
        bridge.unloaded.connect(self._end_soon)

    def load(self, config: EngineConfig) -> None:
        self.bridge.load(config)

    def cancel(self) -> None:
        self.bridge.cancel_load()

    def let_go(self) -> None:
        """Give its memory back, and end: nothing waits for it, but `end` where the program ends
        first."""
        self.bridge.cancel_load()
        self.bridge.unload()

    def end(self) -> None:
        """End now, with the program or after it gave its memory back. Twice is once."""
        self.bridge.shutdown(_END_S)
        self.bridge.deleteLater()
        self.deleteLater()

    def _end_soon(self) -> None:
        QTimer.singleShot(0, self, self.end)  # not within a signal of what it ends

    def _on_failed(self, event: messages.LoadFailed) -> None:
        self.failed.emit(event.error, event.cancelled)
