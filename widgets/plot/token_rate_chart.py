"""`TokenRateChart`: prompt and output tokens per second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from engine.snapshot import Counters
from widgets.plot.clock import RedrawClock
from widgets.plot.series import Series, whole
from widgets.plot.time_chart import TimeChart


class RateBins:
    """Sums counts in bins of `width` seconds and gives each bin's rate once it is over.

    Bins lie at multiples of `width`. A bin is closed `patience` seconds after its end, because
    snapshots come late; a bin in which nothing was counted gives 0. Counts for a closed bin go
    into the oldest open one, so that none is lost.
    """

    def __init__(self, width: float = 1.0, patience: float = 0.3, longest: float = 1200) -> None:
        self.width = width
        self.patience = patience
        self.longest = longest
        self._most_open = round(longest / width)
        self.open: dict[int, float] = {}  # counts whose rate is not known yet, by bin
        self._next: int | None = None  # number of the oldest open bin

    def add(self, time: float, count: float) -> None:
        number = math.floor(time / self.width)
        if self._next is None:
            self._next = number
        number = max(number, self._next)
        self.open[number] = self.open.get(number, 0.0) + count
        if len(self.open) > self._most_open:  # nobody looked for long
            del self.open[min(self.open)]

    def close(self, now: float) -> list[tuple[float, float]]:
        """(end of the bin, count per second) of each bin that is over and was not given before."""
        if self._next is None:
            return []
        end = math.floor((now - self.patience) / self.width)  # bins before this are over
        first = max(self._next, end - round(self.longest / self.width))
        closed = [
            ((number + 1) * self.width, self.open.get(number, 0.0) / self.width)
            for number in range(first, end)
        ]
        self._next = max(self._next, end)
        self.open = {n: count for n, count in self.open.items() if n >= self._next}
        return closed

    def clear(self) -> None:
        self.open.clear()
        self._next = None


class ShareOverSpan:
    """The share of two running totals (hits of queries) over the last `span` seconds."""

    def __init__(self, span: float) -> None:
        self.span = span
        self._counted: deque[tuple[float, int, int]] = deque()  # time, part, whole

    def add(self, time: float, part: int, whole: int) -> float:
        """Totals at `time`; gives the share, 0 to 1, or NaN when nothing was counted in the span.

        The first totals stand for themselves, and so do totals that went back (a restart).
        """
        counted = self._counted
        if counted and whole < counted[-1][2]:
            counted.clear()
        if not counted:
            counted.append((-math.inf, 0, 0))
        counted.append((time, part, whole))
        while len(counted) > 2 and counted[1][0] <= time - self.span:
            counted.popleft()
        _, part_before, whole_before = counted[0]
        return (part - part_before) / new if (new := whole - whole_before) else math.nan

    def clear(self) -> None:
        self._counted.clear()


class TokenRateChart(TimeChart):
    """Tokens per second, in whole seconds."""

    def __init__(self, clock: RedrawClock, time_source: Callable[[], float]) -> None:
        super().__init__(
            "Tokens per second", "tok/s",
            (
                Series("in", "in", "tokens_in", text=whole,
                       tip="Prompt tokens computed, without cached tokens"),
                Series("out", "out", "tokens_out", text=whole, tip="Generated tokens"),
            ),
            clock=clock, heading="Tokens per second", value_template="00,000",
            least_span=10.0, time_source=time_source,
            empty_text="Throughput appears with the first request.",
        )  # fmt: skip
        self._bins = {"in": RateBins(), "out": RateBins()}
        self._before: Counters | None = None

    def add_counters(self, at: float, counters: Counters) -> None:
        """What was counted since the counters before; they restart with the engine."""
        before, self._before = self._before, counters
        if before is None:
            before = counters  # what was counted before the window looked has no time
        elif counters.generation_tokens < before.generation_tokens:
            before = Counters()
        self._bins["in"].add(at, max(counters.prompt_tokens - before.prompt_tokens, 0))
        self._bins["out"].add(at, counters.generation_tokens - before.generation_tokens)
        self.request_redraw()

    def wants_redraw(self) -> bool:
        """Also when nothing new comes: the last second has to end."""
        waits = not self.is_paused and any(bins.open for bins in self._bins.values())
        return waits or super().wants_redraw()

    def prepare(self, now: float) -> None:
        for key, bins in self._bins.items():
            for at, rate in bins.close(now):
                self.data.append(key, at, rate)

    def clear(self) -> None:
        super().clear()
        for bins in self._bins.values():
            bins.clear()
