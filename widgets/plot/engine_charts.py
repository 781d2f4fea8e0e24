"""Charts of the engine's figures: `LatencyChart`, `TokenRateChart` and `StackedAreaChart`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PySide6.QtGui import QColor

from engine.snapshot import Counters, Sample
from engine.units import duration_text, whole
from widgets.plot.clock import RedrawClock
from widgets.plot.data import HISTORY_S, NOTHING
from widgets.plot.items import AreaItem
from widgets.plot.series import (
    FEWEST_FOR_P99,
    EndLabel,
    Reading,
    RollingPercentiles,
    Series,
    SeriesKind,
)
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import theme

MAX = "max"
_STEP_S = 0.5  # distance of two points of the percentile lines
_SAMPLES_KEPT = 65536  # at 500 tokens per second: the last two minutes


def _series(span_s: float) -> tuple[Series, ...]:
    span = f"over the last {duration_text(span_s)}"
    few = f"99th percentile {span} (maximum if fewer than {FEWEST_FOR_P99} samples)"
    return (
        Series("samples", "samples", "sample_dot", SeriesKind.DOTS, held=0.98,
               tip="Individual samples"),
        Series("p50", "p50", "p50", width=2.0, held=0.95, tip=f"Median {span}"),
        Series("p99", "p99", "p99", held=0.5, tip=few),
    )


class LatencyChart(TimeChart):
    """Milliseconds over time. `span_s`: seconds of samples behind each percentile.

    Fewer than 100 samples have no p99: the line is their maximum then, labelled "max"."""

    def __init__(
        self,
        title: str,
        *,
        span_s: float,
        clock: RedrawClock,
        note: str = "",
        empty_text: str = "",
        time_source: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(
            title, "ms", _series(span_s), clock=clock, note=note, empty_text=empty_text,
            value_template="1,000", least_span=10.0, capacity=_SAMPLES_KEPT,
            time_source=time_source,
        )  # fmt: skip
        self.view.value_templates = (MAX, self.view.value_templates[1])  # the widest of the names
        self.span_s = span_s
        self._rolling = RollingPercentiles(self.data.history["samples"], span_s, _STEP_S, HISTORY_S)
        self._num_samples = 0

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Samples in seconds."""
        if samples:
            self.extend("samples", [s.time for s in samples], [s.value * 1e3 for s in samples])

    def clear(self) -> None:
        super().clear()
        self._rolling.clear()

    def prepare(self, now: float) -> None:
        for at, found in self._rolling.advance(now):
            self.data.append("p50", at, found.p50)
            self.data.append("p99", at, found.p99)
            self._num_samples = found.num_samples

    def end_label(self, key: str, value: float) -> EndLabel:
        label = super().end_label(key, value)
        if key == "p99" and self._num_samples < FEWEST_FOR_P99:
            return replace(label, label=MAX)
        return label


class RateBins:
    """Counts per second in bins of `width` seconds, each given once it is complete.

    Bins lie at multiples of `width`. A bin is closed `patience` seconds after its end, because
    snapshots come late; an empty bin gives 0. Counts for a closed bin go into the oldest open one,
    so that none is lost."""

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
        """(end of the bin, count per second) of each newly closed bin."""
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
    """Ratio of two running totals (hits of queries) over the last `span` seconds."""

    def __init__(self, span: float) -> None:
        self.span = span
        self._counted: deque[tuple[float, int, int]] = deque()  # time, part, whole

    def add(self, time: float, part: int, whole: int) -> float:
        """Totals at `time`; returns the ratio, 0 to 1, or NaN without counts in the span. The first
        totals, and totals that decreased (a restart), count from zero."""
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
                       tip="Prompt tokens computed, excluding cached tokens"),
                Series("out", "out", "tokens_out", text=whole, tip="Generated tokens"),
            ),
            clock=clock, heading="Tokens per second", value_template="0,000",
            least_span=10.0, time_source=time_source,
            empty_text="Throughput appears with the first request.",
        )  # fmt: skip
        self._bins = {"in": RateBins(), "out": RateBins()}
        self._before: Counters | None = None

    def add_counters(self, at: float, counters: Counters) -> None:
        """Add the difference to the previous counters, which restart with the engine."""
        before, self._before = self._before, counters
        if before is None:
            before = counters  # what was counted before the window looked has no time
        elif counters.generation_tokens < before.generation_tokens:
            before = Counters()
        self._bins["in"].add(at, max(counters.prompt_tokens - before.prompt_tokens, 0))
        self._bins["out"].add(at, counters.generation_tokens - before.generation_tokens)
        self.request_redraw()

    def wants_redraw(self) -> bool:
        """Also without new data: the last second has to be completed."""
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


_FILL_ALPHA = 0.72
_NEAR_LIMIT = 0.4  # share of the limit from which on the axis reaches up to it


def area(key: str, label: str, color: str, **options: Any) -> Series:
    """A stacked series: a state that holds until the next value."""
    return Series(key, label, color, SeriesKind.AREA, hold=True, **options)


class StackedAreaChart(TimeChart):
    """Series of kind AREA stacked in their order, the first at the bottom.

    They must be appended together (`append_row`), so that they share their times. Other series are
    lines. When the stack comes near the limit, it appears as a dashed line; below, its value is
    printed at the top and the axis follows the data."""

    _limit: float | None = None

    @property
    def stacked(self) -> list[str]:
        """Keys of the stacked series, from the bottom."""
        return list(self._areas)

    def append_row(self, at: float, values: Mapping[str, float]) -> None:
        """Append one value to each stacked series."""
        for key in self._areas:
            self.append(key, at, values[key])

    def set_limit(self, value: float | None) -> None:
        self._limit = value
        self.request_redraw()

    def _make_items(self) -> None:
        super()._make_items()
        self._areas: dict[str, AreaItem] = {}
        for z, one in enumerate(self.data.series.values()):
            if one.kind is SeriesKind.AREA:
                self._areas[one.key] = item = AreaItem()
                item.setZValue(-50 - z)
                self.view.box.addItem(item, ignoreBounds=True)

    def _restyle(self) -> None:
        super()._restyle()
        table = theme()
        for key, item in self._areas.items():
            name = self.data.series[key].color
            item.set_colors(table.color(name, _FILL_ALPHA), QColor(table.line_color(name)))

    def _draw_lines(self, now: float) -> tuple[float, float]:
        low, high = super()._draw_lines(now)
        x, shares = self.data.stack_points(now, self.shown_s)
        base = np.zeros(len(x))
        for key, item in self._areas.items():
            if key not in shares:
                item.set_band(NOTHING, NOTHING, NOTHING)
                continue
            top = base + shares[key]
            item.set_band(x, base, top)
            base = top
        if len(x):
            low, high = min(low, 0.0), max(high, float(np.nanmax(base)))
        self.view.limit = self._limit
        if self._limit is not None and high > _NEAR_LIMIT * self._limit:
            high = max(high, self._limit)
        return low, high

    def _end_labels(self, now: float) -> list[EndLabel]:
        labels = super()._end_labels(now)
        below = 0.0
        for key in self._areas:
            value = self.data.newest(key, now, self.shown_s)
            if value is not None and self.is_shown(key):
                label = self.end_label(key, value)
                labels.append(replace(label, y=below + value / 2))
                below += value
        if self._limit is not None and labels:
            text = next(iter(self.data.series.values())).text(self._limit)
            is_above = self._limit > self.view.y_range.high
            labels.append(EndLabel("limit ↑" if is_above else "limit", text, "limit", self._limit))
        return labels

    def readings_at(self, at: float) -> list[Reading]:
        """The point of a stacked value is at the top of its band."""
        found = super().readings_at(at)
        stacked = {self.data.series[key].label for key in self._areas}
        below = 0.0
        for i, reading in enumerate(found):
            if reading.label in stacked:
                below += reading.y
                found[i] = replace(reading, y=below)
        return found

    def num_drawn_points(self) -> dict[str, int]:
        return super().num_drawn_points() | {k: a.num_points for k, a in self._areas.items()}
