"""Bounded history of one series: times and values, the newest at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.units import figure, number

Floats = NDArray[np.float64]


class RingBuffer:
    """The last `capacity` pairs of time (seconds, ascending) and value (NaN is a gap).

    Reading gives contiguous views without a copy. The memory holds twice the capacity and the
    newest half is moved to the front when the end is reached, so appending is O(1) on average:

        [ . . . . o o o o o o . . ]      o: kept, start:stop
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.capacity = capacity
        self._data = np.empty((2, 2 * capacity))
        self._start = self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def times(self) -> Floats:
        return self._data[0, self._start : self._stop]

    @property
    def values(self) -> Floats:
        return self._data[1, self._start : self._stop]

    def append(self, time: float, value: float) -> None:
        if self._stop == self._data.shape[1]:
            self._make_room(1)
        self._data[0, self._stop] = time
        self._data[1, self._stop] = value
        self._stop += 1
        self._start = max(self._start, self._stop - self.capacity)

    def extend(self, times: ArrayLike | Sequence[float], values: ArrayLike) -> None:
        new = np.array([times, values], dtype=float)[:, -self.capacity :]
        count = new.shape[1]
        if self._stop + count > self._data.shape[1]:
            self._make_room(count)
        self._data[:, self._stop : self._stop + count] = new
        self._stop += count
        self._start = max(self._start, self._stop - self.capacity)

    def clear(self) -> None:
        self._start = self._stop = 0

    def drop_before(self, time: float) -> None:
        self._start += int(np.searchsorted(self.times, time))

    def since(self, time: float) -> tuple[Floats, Floats]:
        """Times and values from the last one before `time` on, so that a line starts at the left
        edge of the plot."""
        first = max(int(np.searchsorted(self.times, time)) - 1, 0)
        return self.times[first:], self.values[first:]

    def between(self, after: float, until: float) -> Floats:
        """Values with after < time <= until."""
        low, high = np.searchsorted(self.times, (after, until), side="right")
        return self.values[low:high]

    def last(self) -> tuple[float, float] | None:
        if not len(self):
            return None
        return float(self._data[0, self._stop - 1]), float(self._data[1, self._stop - 1])

    def nearest(self, time: float) -> tuple[float, float] | None:
        """The pair closest to `time`; None without one, or if it is a gap."""
        times = self.times
        if not len(times):
            return None
        right = int(np.searchsorted(times, time))
        left = max(right - 1, 0)
        right = min(right, len(times) - 1)
        index = left if time - times[left] <= times[right] - time else right
        found = float(self.values[index])
        return None if np.isnan(found) else (float(times[index]), found)

    def at(self, time: float) -> tuple[float, float] | None:
        """The pair in force at `time`: the newest not after it; None before the first."""
        index = int(np.searchsorted(self.times, time, side="right")) - 1
        if index < 0 or np.isnan(self.values[index]):
            return None
        return float(self.times[index]), float(self.values[index])

    def _make_room(self, count: int) -> None:
        keep = min(len(self), self.capacity, self._data.shape[1] - count)
        self._data[:, :keep] = self._data[:, self._stop - keep : self._stop].copy()
        self._start, self._stop = 0, keep


_MOST_AT_ONCE = 120  # percentiles of one call: about 20 ms
FEWEST_FOR_P99 = 100  # below, the 99th percentile is no more than the largest sample


class Percentiles(NamedTuple):
    """p50 and p99 of `num_samples` samples; for fewer than 100, p99 is the maximum."""

    p50: float
    p99: float
    num_samples: int


def percentiles(values: Floats) -> Percentiles:
    """Percentiles of samples without NaN; NaN for no samples."""
    count = len(values)
    if not count:
        return Percentiles(math.nan, math.nan, 0)
    if count < FEWEST_FOR_P99:
        return Percentiles(float(np.median(values)), float(values.max()), count)
    p50, p99 = np.percentile(values, (50, 99))
    return Percentiles(float(p50), float(p99), count)


class RollingPercentiles:
    """p50 and p99 of the samples of the last `span` seconds, every `step` seconds.

    The fixed grid makes the lines independent of the redraw rate. `advance` computes only what is
    new, at most `longest` seconds of it, and on a coarser grid if that is much: returning to a
    hidden chart must not stall the window."""

    def __init__(self, samples: RingBuffer, span: float, step: float, longest: float) -> None:
        self.samples = samples
        self.span = span
        self.step = step
        self.longest = longest
        self._done: int | None = None  # number of the last grid time that was computed

    def clear(self) -> None:
        self._done = None

    def advance(self, now: float) -> list[tuple[float, Percentiles]]:
        """(time, percentiles) of every new grid time up to `now`."""
        last = math.floor(now / self.step)
        oldest = last - round(self.longest / self.step)
        if self._done is None:
            if not len(self.samples):
                return []
            first_time = float(self.samples.times[0])
            self._done = max(math.ceil(first_time / self.step) - 1, oldest)
        first = max(self._done, oldest) + 1
        stride = -(-(last + 1 - first) // _MOST_AT_ONCE) if last >= first else 1
        numbers = [n for n in range(first, last + 1) if n % stride == 0]
        self._done = max(last, self._done)
        at = [number * self.step for number in numbers]
        return [(t, percentiles(self.samples.between(t - self.span, t))) for t in at]




class Range(NamedTuple):
    low: float
    high: float

    @property
    def span(self) -> float:
        return self.high - self.low


def round_step(span: float, max_ticks: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that gives at most `max_ticks` steps."""
    raw = span / max(max_ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0):
        if factor * power >= raw * (1 - 1e-9):
            return factor * power
    return 10.0 * power


def ticks(shown: Range, max_ticks: int) -> list[float]:
    """Round values inside `shown`, ascending."""
    if not shown.span > 0 or not math.isfinite(shown.span):
        return [shown.low]
    step = round_step(shown.span, max_ticks)
    first = math.ceil(shown.low / step - 1e-9)
    last = math.floor(shown.high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def range_for(
    low: float, high: float, before: Range | None, from_zero: bool, least_span: float = 1e-9
) -> Range:
    """The axis range for data between `low` and `high`.

    It grows at once and shrinks only when the data fills less than half of it, so that the axis
    does not change with every sample. From zero on it is at least `least_span` long: values near
    zero are not magnified."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return before or Range(0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
        high = max(high, low + least_span / 1.1)
    span = max(high - low, abs(high) * 0.02, 1e-9)
    wanted = Range(low if from_zero else low - 0.05 * span, high + 0.10 * span)
    if before and _contains(before, wanted, low, high) and wanted.span > 0.5 * before.span:
        return before
    step = round_step(wanted.span, 10)
    rounded_low = math.floor(wanted.low / step + 1e-9) * step
    return Range(rounded_low, math.ceil(wanted.high / step - 1e-9) * step)


def _contains(before: Range, wanted: Range, low: float, high: float) -> bool:
    tolerance = 1e-9 * before.span
    return (
        before.low <= low + tolerance
        and high <= before.high + tolerance
        and (before.low == 0) == (wanted.low == 0)
    )


def tick_text(value: float, step: float) -> str:
    """The number at a tick, with the decimals that the tick distance needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if step > 0 and abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1  # 2.5, 0.25
    return number(value, decimals)


def labelled_ticks(shown: Range, height: float, distance: float) -> list[tuple[float, str]]:
    """Ticks of a value axis `height` pixels high, at least `distance` pixels apart."""
    most = max(int(height / distance), 2)
    step = round_step(shown.span, most)
    return [(value, tick_text(value, step)) for value in ticks(shown, most)]


def seconds_text(seconds: float, step: float) -> str:
    """Label of the time axis relative to now: -30 s, -5 min, now."""
    if abs(seconds) < 1e-6:
        return "now"
    if step >= 60:
        return f"{number(seconds / 60, 0 if step % 60 == 0 else 1)} min"
    return f"{number(seconds, 0 if step >= 1 else 1)} s"


_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)


def time_ticks(low: float, high: float, max_ticks: int) -> tuple[list[float], float]:
    """Tick positions on a time axis from `low` to `high` seconds, and their distance."""
    for step in _TIME_STEPS:
        if (high - low) / step <= max_ticks:
            first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
            return [step * k for k in range(first, last + 1)], float(step)
    return [low, high], high - low


class SeriesKind(StrEnum):
    LINE = "line"
    STEPS = "steps"  # holds each value until the next: counts, settings
    DOTS = "dots"  # single samples
    AREA = "area"  # a share in a stack


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a chart. `color` is a name of the theme; `text` writes a value (no unit).

    hold: the newest value stays true until there is another (a state), so the line runs on to
    now. Without it (a measurement) the line ends where the last one was made.

    silence: seconds without a value after which a line runs level up to the next one: a slope
    would tell of a slow change that nobody has seen.
    """

    key: str
    label: str
    color: str
    kind: SeriesKind = SeriesKind.LINE
    width: float = 1.0
    dashed: bool = False
    hold: bool = False
    silence: float = math.inf
    tip: str = ""  # what exactly is shown, for the legend
    text: Callable[[float], str] = figure


class MarkKind(StrEnum):
    SETTING = "setting"
    LOAD = "load"  # a background load began or ended
    MODEL = "model"  # another model was opened


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the time axis. `text` is printed at its line; the lines of `details` appear when
    the cross-line is near (without any, the text itself)."""

    time: float
    text: str
    kind: MarkKind = MarkKind.SETTING
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The newest value of a series, printed at the end of its line."""

    label: str
    value: str
    color: str  # theme name
    y: float  # in the chart's unit


@dataclass(frozen=True, slots=True)
class Reading:
    """An exact value at the cross-line, and the position of its point."""

    label: str
    value: str
    color: str
    time: float
    y: float
