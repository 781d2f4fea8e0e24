"""Tokens read and written per second, from the engine's running totals."""

from __future__ import annotations

from collections.abc import Callable

from engine.snapshot import Counters
from widgets.charts.clock import RedrawClock
from widgets.charts.rates import RateBins
from widgets.charts.scale import number
from widgets.charts.series import Series
from widgets.charts.time_chart import TimeChart


def _whole(value: float) -> str:
    return number(value, 0)


class TokenRateChart(TimeChart):
    """Tokens per second, in whole seconds."""

    def __init__(self, clock: RedrawClock, time_source: Callable[[], float]) -> None:
        super().__init__(
            "Tokens per second", "tok/s",
            (
                Series(
                    "in", "in", "tokens_in", text=_whole,
                    tip="Prompt tokens computed, without cached ones",
                ),
                Series("out", "out", "tokens_out", text=_whole, tip="Tokens generated"),
            ),
            clock=clock, heading="Tokens per second", value_template="00,000",
            time_source=time_source,
            empty_text="Tokens read and written per second appear with the first request.",
        )  # fmt: skip
        self.least_span = 10.0
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
        waits = not self.is_paused and any(bins.has_open for bins in self._bins.values())
        return waits or super().wants_redraw()

    def prepare(self, now: float) -> None:
        for key, bins in self._bins.items():
            for at, rate in bins.close(now):
                self.data.append(key, at, rate)

    def clear(self) -> None:
        super().clear()
        for bins in self._bins.values():
            bins.clear()
