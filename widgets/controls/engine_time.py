"""The engine's clock. No Qt."""

from __future__ import annotations

import time


class EngineTime:
    """The engine's clock, extrapolated from the newest snapshot.

    `speed`: 1 live, the playback speed of a recording, 0 when paused.
    """

    def __init__(self) -> None:
        self._speed = 1.0
        self._at = self._since = time.perf_counter()

    def synchronise(self, engine_time: float) -> None:
        self._at, self._since = engine_time, time.perf_counter()

    def set_speed(self, speed: float) -> None:
        self.synchronise(self.now())
        self._speed = speed

    def now(self) -> float:
        return self._at + (time.perf_counter() - self._since) * self._speed
