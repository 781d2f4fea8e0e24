"""Fewer points that look the same: drawing cost must not grow with the history."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.ma
from numpy.typing import ArrayLike, NDArray

from engine.units import number
from widgets.plot.series import Floats, Reading, RingBuffer, Series, SeriesKind
from widgets.plot.table import Column


def decimate(times: Floats, values: Floats, width: float, max_points: int) -> tuple[Floats, Floats]:
    """At most about `max_points` of a line that spans `width` seconds, extremes kept.

    Every time bucket gives its minimum and maximum, in their order. Buckets are multiples of an
    absolute width: as time passes they do not move against the data, so the line does not shimmer.
    A bucket that contains a gap (NaN) keeps it."""
    count = len(times)
    if count <= max_points:
        return times, values
    bucket = width / (max_points // 2)
    index = np.floor(times / bucket).astype(np.int64)
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    if 2 * len(starts) > count:
        return times, values
    lows = np.minimum.reduceat(values, starts)  # NaN wins in minimum and maximum
    highs = np.maximum.reduceat(values, starts)
    ends = np.append(starts[1:], count) - 1
    rising = values[ends] >= values[starts]
    pairs = np.where(rising, (lows, highs), (highs, lows))
    at = np.stack((times[starts], times[ends]))
    return at.T.ravel(), pairs.T.ravel()


def pick_states(times: Floats, width: float, max_points: int) -> NDArray[np.intp]:
    """Indices of at most about `max_points` times: the newest of every bucket, and the first. For
    series that are drawn together (a stack) and must keep common times."""
    count = len(times)
    if count <= max_points:
        return np.arange(count)
    bucket = np.floor(times / (width / max_points)).astype(np.int64)
    ends = np.flatnonzero(np.diff(bucket, append=bucket[-1] + 1))
    return np.union1d([0], ends)


def thin_samples(
    times: Floats, values: Floats, first_index: int, width: float, max_points: int
) -> tuple[Floats, Floats]:
    """At most about `max_points` of a cloud of samples, outliers kept.

    Samples are chosen by their running number (`first_index` is that of times[0]), so that the
    choice is stable from one redraw to the next; the largest sample of every time bucket is added:
    spikes matter."""
    count = len(times)
    if count <= max_points:
        return times, values
    num_buckets = max_points // 4
    stride = 1
    while count // stride > max_points - num_buckets:
        stride *= 2
    is_kept = np.zeros(count, np.bool_)
    is_kept[-first_index % stride :: stride] = True
    bucket = width / num_buckets
    edges = np.arange(np.ceil(times[0] / bucket), np.floor(times[-1] / bucket) + 1) * bucket
    starts = np.concatenate(([0], np.searchsorted(times, edges)))
    starts = starts[np.diff(starts, append=count) > 0]
    largest = np.maximum.reduceat(values, starts)
    peaks = np.flatnonzero(values == np.repeat(largest, np.diff(starts, append=count)))
    of_bucket = np.searchsorted(starts, peaks, side="right")
    is_kept[peaks[np.diff(of_bucket, prepend=0) > 0]] = True  # one a bucket, if equal ones
    return times[is_kept], values[is_kept]


def before_silences(times: Floats, longest: float) -> NDArray[np.intp]:
    """Indices of the values that are followed by none for longer than `longest` seconds."""
    if longest == math.inf:
        return np.empty(0, np.intp)
    return np.flatnonzero(np.diff(times) > longest)


def as_steps(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """A step line: each value holds until the next. Counts have no slopes."""
    if len(values) < 2:
        return times, values
    changed = np.flatnonzero(values[1:] != values[:-1]) + 1
    at = np.concatenate(([times[0]], np.repeat(times[changed], 2), [times[-1]]))
    return at, np.repeat(values[np.concatenate(([0], changed))], 2)


MAX_LINE_POINTS = 600
MAX_DOTS = 600
MOST_SPREAD = 2000
HISTORY_S = 1200.0
NOTHING: Floats = np.empty(0)


class ChartData:
    """History of `series`: at most `capacity` points of each, none older than `HISTORY_S` seconds
    before the newest. Times are ascending in each series."""

    def __init__(self, series: Sequence[Series], unit: str, capacity: int) -> None:
        self.series = {one.key: one for one in series}
        self.unit = unit
        self.history = {one.key: RingBuffer(capacity) for one in series}
        self.hidden: set[str] = set()
        self._appended = dict.fromkeys(self.series, 0)  # of all time, to thin samples stably

    @property
    def is_empty(self) -> bool:
        return not any(len(ring) for ring in self.history.values())

    def append(self, key: str, at: float, value: float) -> None:
        self.history[key].append(at, value)
        self._appended[key] += 1
        self._forget(key, at)

    def extend(self, key: str, times: ArrayLike, values: ArrayLike) -> None:
        new_times = np.asarray(times, dtype=float)
        if len(new_times):
            self.history[key].extend(new_times, values)
            self._appended[key] += len(new_times)
            self._forget(key, float(new_times[-1]))

    def replace(self, key: str, times: ArrayLike, values: ArrayLike) -> None:
        """All points of a series."""
        self.history[key].clear()
        self.extend(key, times, values)

    def _forget(self, key: str, newest: float) -> None:
        ring = self.history[key]
        if ring.times[0] < newest - HISTORY_S:
            ring.drop_before(newest - HISTORY_S)

    def clear(self) -> None:
        for ring in self.history.values():
            ring.clear()

    def is_live(self, since: float) -> bool:
        """Whether there is data newer than `since`."""
        return any((last := ring.last()) and last[0] > since for ring in self.history.values())

    # What is drawn ----------------------------------------------------------------------------

    def line_points(self, key: str, now: float, window: float) -> tuple[Floats, Floats]:
        """A line: times relative to now, and values; at most about MAX_LINE_POINTS."""
        one = self.series[key]
        times, values = self.history[key].since(now - window)
        end = int(np.searchsorted(times, now, side="right"))
        if end < len(times) and not one.hold:
            end += 1  # up to the right edge of a past range
        times, values = times[:end], values[:end]
        if one.hold and end and times[-1] < now:
            times, values = np.append(times, now), np.append(values, values[-1])
        if one.kind is SeriesKind.STEPS:
            times, values = as_steps(times, values)
        else:
            quiet = before_silences(times, one.silence)
            if len(quiet):
                times = np.insert(times, quiet + 1, times[quiet + 1])
                values = np.insert(values, quiet + 1, values[quiet])
        times, values = decimate(times, values, window, MAX_LINE_POINTS)
        return times - now, values

    def samples(self, key: str, now: float, window: float) -> tuple[Floats, Floats]:
        """A cloud of samples: times relative to now, and values; at most about MAX_DOTS."""
        times, values = self.history[key].times, self.history[key].values
        first, end = np.searchsorted(times, (now - window, now))
        running = self._appended[key] - len(times) + int(first)
        x, y = thin_samples(times[first:end], values[first:end], running, window, MAX_DOTS)
        return x - now, y

    def spread(self, key: str, now: float, window: float) -> Floats:
        """The values of a cloud of samples; of very many an even choice."""
        ring = self.history[key]
        first, end = np.searchsorted(ring.times, (now - window, now))
        return ring.values[first : end : -(-(end - first) // MOST_SPREAD) or 1]

    def above(self, now: float, window: float, high: float) -> Floats:
        """The visible samples above `high`."""
        found = []
        for key, one in self.series.items():
            if one.kind is SeriesKind.DOTS and key not in self.hidden:
                ring = self.history[key]
                first, end = np.searchsorted(ring.times, (now - window, now))
                values = ring.values[first:end]
                found.append(values[values > high])
        return np.concatenate(found) if found else NOTHING

    def stack_points(self, now: float, window: float) -> tuple[Floats, dict[str, Floats]]:
        """Common times (relative to now) and the values of each visible AREA series, 0 in a gap."""
        keys = [key for key, one in self.series.items() if one.kind is SeriesKind.AREA]
        times, _ = self.history[keys[0]].since(now - window)
        end = int(np.searchsorted(times, now, side="right"))
        if not end:
            return NOTHING, {}
        chosen = pick_states(times[:end], window, MAX_LINE_POINTS // 2)
        quiet = before_silences(times[chosen], self.series[keys[0]].silence)
        at = times[chosen]
        if len(quiet):
            at = np.insert(at, quiet + 1, at[quiet + 1])
        shares = {}
        for key in keys:
            if key not in self.hidden:
                values = np.nan_to_num(self.history[key].since(now - window)[1][chosen])
                if len(quiet):
                    values = np.insert(values, quiet + 1, values[quiet])
                shares[key] = np.append(values, values[-1])
        return np.append(at - now, 0.0), shares

    def newest(self, key: str, now: float, window: float) -> float | None:
        """The value at the line's end within the window; None without one."""
        ring = self.history[key]
        found = ring.at(now)
        if self.series[key].hold:  # a state that ended has none
            return None if found is None else found[1]
        if found is not None and found[0] >= now - window:
            return found[1]
        recent = ring.between(now - window, now)  # it ends in a gap
        known = recent[np.isfinite(recent)]
        return float(known[-1]) if len(known) else None

    # What is read -----------------------------------------------------------------------------

    def readings_at(self, at: float, window: float) -> list[Reading]:
        """Exact values of the visible series at time `at`: of states the one in force, of lines the
        nearest point, of samples the nearest within a hundredth of the window."""
        readings = []
        for key, one in self.series.items():
            if key in self.hidden:
                continue
            ring = self.history[key]
            is_state = one.hold or one.kind is SeriesKind.STEPS
            found = ring.at(at) if is_state else ring.nearest(at)
            reach = window / (100 if one.kind is SeriesKind.DOTS else 20)
            if found is None or (not one.hold and abs(found[0] - at) > reach):
                continue
            text = self.exact_text(found[1])
            readings.append(Reading(one.label, text, one.color, found[0], found[1]))
        return readings

    def exact_text(self, value: float) -> str:
        """A value with its unit, with more digits than a label."""
        if self.unit == "ms" and abs(value) >= 1000:
            return f"{number(value / 1e3, 3)} s"
        return f"{number(value, 0 if float(value).is_integer() else 2)} {self.unit}".rstrip()

    def columns(self, start: float, end: float) -> list[Column]:
        """The stored values of each series with start <= time <= end."""
        unit = f" ({self.unit})" if self.unit else ""
        columns = []
        for key, one in self.series.items():
            times, values = self.history[key].times, self.history[key].values
            part = slice(np.searchsorted(times, start), np.searchsorted(times, end, side="right"))
            columns.append(Column(one.label + unit, times[part], values[part]))
        return columns

    def newest_values(self) -> str:
        """The newest value of every series, as text for screen readers."""
        parts = [
            f"{one.label} {one.text(last[1])} {self.unit}".rstrip()
            for key, one in self.series.items()
            if (last := self.history[key].last()) and not math.isnan(last[1])
        ]
        return ", ".join(parts)
