"""The server's clock in ours, from the time that a small exchange takes.

    ours    sent ------------------- received
    theirs           now

`now` lies somewhere between `sent` and `received`. The middle is taken of the exchange that took
the least time, and it is wrong by half of that time at most. Clocks drift apart, and a better
exchange may come: a correction backwards is drawn out over twice its length, so that what came
later is never shown earlier, and a time that was put into our clock once is always put there so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

LATEST = 60
"""Exchanges among which the quickest counts: with one a second, a minute."""
LEAST_S = 0.0005
"""Smaller corrections are not worth one."""
JUMP_S = 1.0
"""A larger correction is no error: a machine slept. It is made at once."""
MAX_KNOTS = 512


class Exchange(NamedTuple):
    round_trip: float
    offset: float


class _Knot(NamedTuple):
    """From `time` of their clock on."""

    time: float
    before: float
    after: float

    def offset(self, time: float) -> float:
        if self.before - self.after > JUMP_S:
            return self.after
        return max(self.after, self.before - (time - self.time) / 2)


class Clock:
    """`here` before the first exchange leaves times as they are."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=LATEST)
        self._knots: list[_Knot] = []

    @property
    def error(self) -> float | None:
        """Seconds by which a time may be wrong; None before the first exchange."""
        best = self._best
        return None if best is None else best.round_trip / 2

    @property
    def round_trip(self) -> float | None:
        best = self._best
        return None if best is None else best.round_trip

    @property
    def _best(self) -> Exchange | None:
        return min(self._exchanges, default=None)

    def reset(self) -> None:
        """A new line: its exchanges count, what was put into our clock stays where it was."""
        self._exchanges.clear()

    def heard(self, sent: float, now: float, received: float) -> None:
        """An exchange: `sent` and `received` of our clock, `now` of theirs."""
        self._exchanges.append(Exchange(received - sent, (sent + received) / 2 - now))
        best = self._best
        assert best is not None
        if not self._knots:
            self._knots.append(_Knot(now, best.offset, best.offset))
            return
        last = self._knots[-1]
        current = last.offset(now)
        # Within its own error an exchange contradicts nothing.
        if now > last.time and abs(best.offset - current) > max(LEAST_S, best.round_trip / 2):
            self._knots.append(_Knot(now, current, best.offset))
            del self._knots[:-MAX_KNOTS]

    def here(self, time: float) -> float:
        """A time of their clock in ours."""
        if not self._knots:
            return time
        index = bisect_right(self._knots, time, key=lambda knot: knot.time)
        if index == 0:
            return time + self._knots[0].before
        return time + self._knots[index - 1].offset(time)
