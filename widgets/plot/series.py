"""Bounded history of one series: times and values, the newest at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.units import figure

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


FEWEST_FOR_P99 = 100  # below, the 99th percentile is no more than the largest sample


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

    held: share of its shown values that the axis must hold. Those far beyond are outliers, drawn at
    the end of the axis.

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
    held: float = 1.0
    silence: float = math.inf
    tip: str = ""  # what exactly is shown, for the legend
    text: Callable[[float], str] = figure


PREDICTED = "predicted"


def predicted(color: str, text: Callable[[float], str] = figure) -> Series:
    """What a chart's main series, of `color`, would have been at other settings."""
    return Series(
        PREDICTED, PREDICTED, color, width=2.0, dashed=True, held=0.95, text=text,
        tip="Predicted with the chosen settings, for the load of the last minute",
    )  # fmt: skip


class MarkKind(StrEnum):
    SETTING = "setting"
    TRIAL = "trial"  # a benchmark or comparison changed a setting
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
