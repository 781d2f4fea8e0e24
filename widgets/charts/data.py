"""What a chart knows, without Qt: the bounded history of its series, and what to draw of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from widgets.charts.decimate import (
    as_steps,
    before_silences,
    decimate,
    pick_states,
    thin_samples,
)
from widgets.charts.ring import Floats, RingBuffer
from widgets.charts.scale import number
from widgets.charts.series import Reading, Series, SeriesKind
from widgets.charts.table import Column, ValuesTable, join_columns

MAX_LINE_POINTS = 600
MAX_DOTS = 600
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

    def _forget(self, key: str, newest: float) -> None:
        ring = self.history[key]
        if ring.times[0] < newest - HISTORY_S:
            ring.drop_before(newest - HISTORY_S)

    def clear(self) -> None:
        for ring in self.history.values():
            ring.clear()

    def is_live(self, since: float) -> bool:
        """Whether anything is newer than `since`."""
        return any((last := ring.last()) and last[0] > since for ring in self.history.values())

    # What is drawn ----------------------------------------------------------------------------

    def line_points(self, key: str, now: float, window: float) -> tuple[Floats, Floats]:
        """A line: times relative to now, and values; at most about MAX_LINE_POINTS."""
        one = self.series[key]
        times, values = self.history[key].since(now - window)
        end = int(np.searchsorted(times, now, side="right"))  # when paused, later ones wait
        times, values = times[:end], values[:end]
        if one.hold and end and times[-1] < now:
            times, values = np.append(times, now), np.append(values, values[-1])
        if one.kind is SeriesKind.STEPS:
            times, values = as_steps(times, values)
        else:
            quiet = before_silences(times, one.silence)
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

    def stack_points(self, now: float, window: float) -> tuple[Floats, dict[str, Floats]]:
        """Common times (relative to now) and the values of each AREA series that is shown, 0
        in a gap."""
        keys = [key for key, one in self.series.items() if one.kind is SeriesKind.AREA]
        times, _ = self.history[keys[0]].since(now - window)
        end = int(np.searchsorted(times, now, side="right"))
        if not end:
            return NOTHING, {}
        chosen = pick_states(times[:end], window, MAX_LINE_POINTS // 2)
        quiet = before_silences(times[chosen], self.series[keys[0]].silence)
        at = np.insert(times[chosen], quiet + 1, times[chosen][quiet + 1])
        shares = {}
        for key in keys:
            if key not in self.hidden:
                values = np.nan_to_num(self.history[key].since(now - window)[1][chosen])
                values = np.insert(values, quiet + 1, values[quiet])
                shares[key] = np.append(values, values[-1])
        return np.append(at - now, 0.0), shares

    def newest(self, key: str, now: float, window: float) -> float | None:
        """The value at the line's end, wherever in the window that is; None without one."""
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
        """The exact values of what is shown at time `at`: of states the one in force, of lines
        the nearest point, of samples the nearest within a hundredth of the window."""
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
        """A value with its unit, with more digits than a label has."""
        return f"{number(value, 0 if float(value).is_integer() else 2)} {self.unit}".rstrip()

    def values_table(self, now: float) -> ValuesTable:
        """All values that are kept, one row per time; times in seconds relative to `now`."""
        unit = f" ({self.unit})" if self.unit else ""
        columns = [
            Column(one.label + unit, self.history[key].times, self.history[key].values)
            for key, one in self.series.items()
        ]
        return join_columns("time (s)", columns, now)

    def newest_values(self) -> str:
        """The newest value of every series in words, as a screen reader should say it."""
        parts = [
            f"{one.label} {one.text(last[1])} {self.unit}".rstrip()
            for key, one in self.series.items()
            if (last := self.history[key].last()) and not math.isnan(last[1])
        ]
        return ", ".join(parts)
