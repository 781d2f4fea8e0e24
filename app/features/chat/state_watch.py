"""`StateWatch`: what the states of requests are read from, as it changes."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Signal

from app.features.chat.states import EngineNow, PrefillRate, state_text
from app.link.bridge import EngineBridge
from app.link.change_watch import ChangeWatch
from engine.snapshot import EngineSnapshot

INTERVAL_S = 0.5
"""Between two refreshes of the states on the screen."""


class StateWatch(QObject):
    """`changed`: states may be other ones, at most twice a second."""

    changed = Signal()

    def __init__(self, engine: EngineBridge, changes: ChangeWatch, parent: QObject) -> None:
        super().__init__(parent)
        self._changes = changes
        self._snapshot: EngineSnapshot | None = None
        self._held_back: frozenset[str] = frozenset()
        self._rate = PrefillRate()
        self._shown_at = 0.0
        engine.snapshot.connect(self._on_snapshot)
        engine.loaded.connect(lambda event: self._forget())
        changes.changed.connect(self._on_change)
        changes.answered.connect(lambda event, text: self._rate.clear())

    def text(self, request_id: str) -> str:
        """What a request waits for; "" while it decodes, or if that is not known."""
        rate = self._rate.tokens_per_s
        now = EngineNow(self._snapshot, self._held_back, rate, self._changes.applying)
        return state_text(request_id, now)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._snapshot = snapshot
        self._rate.take(snapshot.steps)
        if snapshot.steps:
            self._held_back = frozenset(snapshot.steps[-1].held_back)
        now = time.monotonic()
        if now - self._shown_at >= INTERVAL_S:
            self._shown_at = now
            self.changed.emit()

    def _on_change(self) -> None:
        self._shown_at = time.monotonic()
        self.changed.emit()

    def _forget(self) -> None:
        self._snapshot, self._held_back = None, frozenset()
        self._rate.clear()
