"""`RunningTotal`: a counter over time; `PercentileLine`: statistics as lines of a chart. No Qt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from widgets.live.statistics import Shown
from widgets.plot.series import RingBuffer

_LOOKS_KEPT = 16_384
_SPREAD_S = 1.0
"""Snapshots of a busy engine come at least this often: before, an idle one counted nothing."""


class RunningTotal:
    """The totals of a counter as snapshots show them. Between two of them it grew evenly, but over
    the last second at most. The engine's restarts do not set it back."""

    def __init__(self) -> None:
        self._sums = RingBuffer(_LOOKS_KEPT)
        self._before: int | None = None  # the engine's total

    def add(self, time: float, total: int, *, is_whole: bool = False) -> None:
        """The counter's `total` at `time`. `is_whole`: all of it was counted since the snapshot
        before; otherwise the first total has no time, and counts as nothing."""
        before, self._before = self._before, total
        if before is None:
            before = 0 if is_whole else total
        grown = total - before if total >= before else total  # less: the engine was restarted
        last = self._sums.last()
        if last is None:
            self._sums.append(time - _SPREAD_S if grown else time, 0.0)
            last = (time, 0.0)
        if grown and time - last[0] > _SPREAD_S:
            self._sums.append(time - _SPREAD_S, last[1])
        if time >= last[0]:
            self._sums.append(time, last[1] + grown)

    def restart(self) -> None:
        """The next total is another engine's."""
        self._before = None

    def at(self, time: float) -> float:
        """The sum up to `time`; 0 before the first."""
        if not len(self._sums):
            return 0.0
        return float(np.interp(time, self._sums.times, self._sums.values))

    def between(self, start: float, end: float) -> float:
        return self.at(end) - self.at(start)

    def grew_until(self, time: float) -> float:
        """When it reached its sum at `time`; -infinity without one."""
        if not len(self._sums):
            return -math.inf
        reached = int(np.searchsorted(self._sums.values, self.at(time)))
        return min(float(self._sums.times[min(reached, len(self._sums) - 1)]), time)


STEP_S = 0.5
"""Distance of two points."""
_POINTS_KEPT = 4096
_MOST_AT_ONCE = 120  # points of one call: about 20 ms
_LONGEST_S = 1200.0


class PercentileLine:
    """p50, and p99 or the largest, at every half second: as `shown` gives them. It ends where
    nothing was measured for `span` seconds, and at every start of an epoch.

    The fixed grid makes the line independent of the redraw rate. `advance` computes only what is
    new, and on a coarser grid if that is much: returning to a hidden chart must not stall the
    window."""

    def __init__(self, shown: Callable[[float], Shown], span: float) -> None:
        self._shown, self._span = shown, span
        self.p50, self.high = RingBuffer(_POINTS_KEPT), RingBuffer(_POINTS_KEPT)
        self._done: int | None = None  # number of the last grid time that was computed
        self._since = -math.inf  # of the last point

    def advance(self, first: float, until: float) -> None:
        """Compute the points from `first`, the oldest sample, to `until`."""
        last = math.floor(until / STEP_S)
        oldest = last - round(_LONGEST_S / STEP_S)
        if self._done is None:
            self._done = max(math.ceil(first / STEP_S) - 1, oldest)
        begin = max(self._done, oldest) + 1
        stride = -(-(last + 1 - begin) // _MOST_AT_ONCE) if last >= begin else 1
        for number in range(begin, last + 1):
            if number % stride == 0:
                self._add(number * STEP_S)
        self._done = max(last, self._done)

    def _add(self, at: float) -> None:
        shown = self._shown(at)
        if shown.since != self._since:
            if len(self.p50):
                self._append(max(min(shown.since, at), self.p50.times[-1]), None, None)
            self._since = shown.since
        is_old = at - shown.newest > self._span
        self._append(at, *((None, None) if is_old else (shown.p50, shown.high)))

    def _append(self, at: float, p50: float | None, high: float | None) -> None:
        self.p50.append(at, math.nan if p50 is None else p50)
        self.high.append(at, math.nan if high is None else high)


def later(ring: RingBuffer, time: float) -> tuple[Sequence[float], Sequence[float]]:
    """Times and values after `time`."""
    first = int(np.searchsorted(ring.times, time, side="right"))
    return ring.times[first:].tolist(), ring.values[first:].tolist()
