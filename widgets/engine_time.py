"""The engine's clock, as seen from the window."""

from __future__ import annotations

import time


class EngineTime:
    """The engine's clock as the charts need it: its last time, running on by ours.

    Snapshots carry the engine's own times; what passes since the newest came is measured here.
    """

    def __init__(self) -> None:
        self._offset = 0.0  # the engine's time less ours

    def synchronise(self, engine_time: float) -> None:
        self._offset = engine_time - time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() + self._offset
