"""How often text is painted and states are shown: as often as the window's share of the time
allows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

SHORTEST_MS, LONGEST_MS = 66, 200
"""Between two paintings of text that streams. 15 a second look fluent; below 5 it stutters."""
SHARE = 0.03
"""Of a processor: what the window may take from the engine while replies are written."""
_MEASURED_S = 0.5
_IDLE_S = 1.5
_STEEPEST = 1.4  # change of the interval from one measurement to the next


class Pace:
    """`interval_ms` between two paintings, from what the calling thread's work amounts to.

    Call `mark` at every painting. Where the thread was busy for more than `SHARE` of the time
    the interval grows, and it shrinks again where there was less; all that the thread does
    counts, so that text yields to charts and to what the user does.
    """

    def __init__(
        self,
        work: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._work, self._clock = work, clock
        self._interval = float(SHORTEST_MS)
        self._since = self._marked = clock()
        self._work_since = work()

    @property
    def interval_ms(self) -> int:
        return round(self._interval)

    def mark(self) -> None:
        """Text is about to be painted."""
        now, work = self._clock(), self._work()
        was_idle = now - self._marked > _IDLE_S
        self._marked = now
        elapsed = now - self._since
        if not was_idle and elapsed < _MEASURED_S:
            return
        if not was_idle:  # what was done before a pause has nothing to do with text
            change = (work - self._work_since) / elapsed / SHARE
            self._interval *= min(max(change, 1 / _STEEPEST), _STEEPEST)
            self._interval = min(max(self._interval, SHORTEST_MS), LONGEST_MS)
        self._since, self._work_since = now, work


class StatePace:
    """`interval_ms` between two states of the engine that are shown, from what showing one costs.

    Take `account` around the showing. Steps and samples of all states in between are shown with
    the next, so that a longer interval loses none.
    """

    SHORTEST_MS, LONGEST_MS = 250, 1000
    SHARE = 0.006
    """Of a processor. Drawing is not in it: charts have a budget of their own."""

    def __init__(self, work: Callable[[], float] = time.thread_time) -> None:
        self._work = work
        # the median of some: work that is done once in a while is no measure of the next
        self._costs: deque[float] = deque(maxlen=5)

    @property
    def interval_ms(self) -> int:
        needed = median(self._costs) * 1e3 / self.SHARE if self._costs else 0.0
        return round(min(max(needed, self.SHORTEST_MS), self.LONGEST_MS))

    @contextmanager
    def account(self) -> Iterator[None]:
        """Around the work of showing one."""
        began = self._work()
        try:
            yield
        finally:
            self._costs.append(self._work() - began)
