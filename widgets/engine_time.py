"""The engine's clock, as seen from the window."""

from __future__ import annotations

import time


class EngineTime:
    """The engine's clock as the charts need it: its last time, running on by ours.

    Snapshots carry the engine's own times; what passes since the newest came is measured here, at
    `speed` times the pace of our clock (other than 1 for a recording that is replayed, and 0 while
    it stands still).
    """

    def __init__(self) -> None:
        self._speed = 1.0
        self._at = self._since = time.perf_counter()

    def synchronise(self, engine_time: float) -> None:
        self._at, self._since = engine_time, time.perf_counter()

    def set_speed(self, speed: float) -> None:
        """From now on."""
        self.synchronise(self.now())
        self._speed = speed

    def now(self) -> float:
        return self._at + (time.perf_counter() - self._since) * self._speed
