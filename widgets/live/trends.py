"""`StatTrends`: the points of sparklines. No Qt."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from widgets.plot.series import Floats, RingBuffer

TREND_S = 60.0
STEP_S = 1.0
"""Seconds between two points: a sparkline is about 80 pixels wide."""
_PAUSE_S = 10.0  # longer than a step of a large model on a small machine
_KEPT = 2 * round(TREND_S / STEP_S)


class StatTrends:
    """One point per figure and second. NaN: a gap."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._rings = {key: RingBuffer(_KEPT) for key in keys}
        self.newest = -math.inf  # time of the newest point

    def is_due(self, at: float) -> bool:
        """Whether it is time for the next point."""
        return at - self.newest >= STEP_S

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """A point per figure; a gap for those missing from `values`."""
        self.newest = at
        for key, ring in self._rings.items():
            ring.append(at, values.get(key, math.nan))

    def clear(self) -> None:
        self.newest = -math.inf
        for ring in self._rings.values():
            ring.clear()

    def points(self, key: str) -> tuple[Floats, Floats]:
        """The last minute before the newest point: positions 0 to 1, and values. A pause is a
        gap."""
        ring = self._rings[key]
        last = ring.last()
        if last is None:
            return np.empty(0), np.empty(0)
        times, values = ring.times, ring.values
        first = int(np.searchsorted(times, last[0] - TREND_S))
        times, values = times[first:], values[first:]
        pauses = np.flatnonzero(np.diff(times) > _PAUSE_S) + 1
        places = 1 - (last[0] - times) / TREND_S
        return np.insert(places, pauses, places[pauses]), np.insert(values, pauses, math.nan)
