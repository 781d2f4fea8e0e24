"""How the leading figures went over the last minute, for the small lines below them. No Qt."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from widgets.charts.ring import Floats, RingBuffer

SPAN_S = 60.0
STEP_S = 1.0
"""Distance of two points: what is drawn is some 80 pixels wide."""
_PAUSE_S = 10.0  # longer than a step of a large model on a small machine
_KEPT = 2 * round(SPAN_S / STEP_S)


class StatTrends:
    """One point of each figure a second. NaN: there was nothing to measure, a gap."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._rings = {key: RingBuffer(_KEPT) for key in keys}
        self._last = -math.inf

    @property
    def newest(self) -> float:
        """Time of the newest point; minus infinity before any."""
        return self._last

    def is_due(self, at: float) -> bool:
        """Whether it is time for the next point."""
        return at - self._last >= STEP_S

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """A point of each figure; one that `values` leaves out has a gap."""
        self._last = at
        for key, ring in self._rings.items():
            ring.append(at, values.get(key, math.nan))

    def clear(self) -> None:
        self._last = -math.inf
        for ring in self._rings.values():
            ring.clear()

    def points(self, key: str) -> tuple[Floats, Floats]:
        """Of the last minute before the newest point: places from 0 to 1, and values. A pause
        without points is a gap as well."""
        ring = self._rings[key]
        last = ring.last()
        if last is None:
            return np.empty(0), np.empty(0)
        times, values = ring.times, ring.values
        first = int(np.searchsorted(times, last[0] - SPAN_S))
        times, values = times[first:], values[first:]
        pauses = np.flatnonzero(np.diff(times) > _PAUSE_S) + 1
        places = 1 - (last[0] - times) / SPAN_S
        return np.insert(places, pauses, places[pauses]), np.insert(values, pauses, math.nan)
