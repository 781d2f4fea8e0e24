"""Collects Python's cyclic garbage in the window's thread alone.

Python collects in whichever thread allocates. A timer, a document or an action of Qt that is in a
cycle would then end in the engine's thread, or in one that encodes: Qt's objects may not, and the
program aborted now and then. Hence automatic collections are off, and a timer looks instead.
"""

from __future__ import annotations

import gc
import threading
import time

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from engine.hardware import garbage

LOOK_MS = 100
WAIT_S = 2.0
"""So long another thread waits for a collection; the window may be waiting for that thread."""
FULL_SHARE = 0.01
"""Of the time that full collections may take, but for those that are asked for."""


class GarbageCollector(QObject):
    """Made in the window's thread; `start` and `stop` are called there."""

    _asked = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._thread = threading.get_ident()
        self._full_at = self._full_s = 0.0  # the last full collection, and what it took
        self._timer = QTimer(self, interval=LOOK_MS)
        self._timer.timeout.connect(self.look)
        self._asked.connect(self._answer, Qt.ConnectionType.QueuedConnection)

    def start(self) -> None:
        gc.disable()
        garbage.use(self.collect)
        self._timer.start()

    def stop(self) -> None:
        """Nothing is collected any more: the program ends."""
        self._timer.stop()
        garbage.use(lambda: False)

    def look(self) -> None:
        """Collect what Python would have collected by now."""
        counts, limits = gc.get_count(), gc.get_threshold()
        if counts[0] <= limits[0]:
            return
        too_soon = self._full_s > FULL_SHARE * (time.monotonic() - self._full_at)
        if counts[1] <= limits[1]:
            gc.collect(0)
        elif counts[2] <= limits[2] or too_soon:
            gc.collect(1)
        else:
            self._collect_all()

    def collect(self) -> bool:
        """A full collection, from any thread; another one than the window's goes on after WAIT_S
        at the latest, and False says that it was only requested."""
        if threading.get_ident() == self._thread:
            self._collect_all()
            return True
        done = threading.Event()
        self._asked.emit(done)
        return done.wait(WAIT_S)

    @Slot(object)
    def _answer(self, done: threading.Event) -> None:
        self._collect_all()
        done.set()

    def _collect_all(self) -> None:
        began = time.monotonic()
        gc.collect()
        self._full_at = time.monotonic()
        self._full_s = self._full_at - began
