"""Shares of a whole over time, stacked: memory by category."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from PySide6.QtGui import QColor

from widgets.charts.decimate import pick_states
from widgets.charts.items import AreaItem
from widgets.charts.ring import Floats
from widgets.charts.series import EndLabel, Reading, Series, SeriesKind
from widgets.charts.time_chart import MAX_LINE_POINTS, TimeChart
from widgets.theme import theme

_FILL_ALPHA = 0.72


class StackedAreaChart(TimeChart):
    """Series of kind AREA lie on top of each other in their order, the first at the bottom.

    They must be appended together (`append_row`), so that they share their times. Other series
    are lines. A dashed line shows the limit.
    """

    stacked: tuple[str, ...]
    _limit: float | None = None

    def append_row(self, at: float, values: dict[str, float]) -> None:
        """One value for each stacked series."""
        for key in self.stacked:
            self.append(key, at, values[key])

    def set_limit(self, value: float | None) -> None:
        """A dashed line at `value`."""
        self._limit = value
        self.request_redraw()

    def _make_items(self) -> None:
        lines = {k: s for k, s in self.series.items() if s.kind is not SeriesKind.AREA}
        self.stacked = tuple(key for key in self.series if key not in lines)
        every, self.series = self.series, lines
        super()._make_items()
        self.series = every
        self._areas: dict[str, AreaItem] = {}
        for z, key in enumerate(self.stacked):
            self._areas[key] = area = AreaItem()
            area.setZValue(-50 - z)
            self.view.box.addItem(area, ignoreBounds=True)

    def _restyle(self) -> None:
        super()._restyle()
        table = theme()
        for key, area in self._areas.items():
            name = self.series[key].color
            area.set_colors(table.color(name, _FILL_ALPHA), QColor(table.line_color(name)))

    def _draw_lines(self, now: float) -> tuple[float, float]:
        low, high = super()._draw_lines(now)
        x, shares = self.stack_points(now)
        base = np.zeros(len(x))
        for key, area in self._areas.items():
            top = base + shares.get(key, 0.0)
            area.set_band(*((x, base, top) if key in shares else (x[:0], x[:0], x[:0])))
            base = top
        if len(x):
            low, high = min(low, 0.0), max(high, float(base.max()))
        if self._limit is not None and math.isfinite(high):
            high = max(high, self._limit)
        self.view.limit = self._limit
        return low, high

    def stack_points(self, now: float) -> tuple[Floats, dict[str, Floats]]:
        """Common times (relative to now) and the value of each stacked series that is shown."""
        times, _ = self.history[self.stacked[0]].since(now - self._window_s)
        end = int(np.searchsorted(times, now, side="right"))
        if not end:
            return np.empty(0), {}
        chosen = pick_states(times[:end], self._window_s, MAX_LINE_POINTS // 2)
        x = np.append(times[chosen] - now, 0.0)
        shares = {}
        for key in self.stacked:
            if key not in self._hidden:
                values = self.history[key].since(now - self._window_s)[1][chosen]
                shares[key] = np.append(values, values[-1])
        return x, shares

    def _end_labels(self, now: float) -> list[EndLabel]:
        labels = super()._end_labels(now)
        below = 0.0
        for key in self.stacked:
            found = self.history[key].at(now)
            if key in self._hidden or found is None:
                continue
            one, value = self.series[key], found[1]
            labels.append(EndLabel(one.label, one.text(value), one.color, below + value / 2))
            below += value
        if self._limit is not None and labels:
            text = next(iter(self.series.values())).text(self._limit)
            labels.append(EndLabel("limit", text, "limit", self._limit))
        return labels

    def readings_at(self, at: float) -> list[Reading]:
        """A share's point is drawn where its band ends."""
        found = super().readings_at(at)
        below = 0.0
        by_label = {self.series[key].label for key in self.stacked}
        for i, reading in enumerate(found):
            if reading.label in by_label:
                below += reading.y
                found[i] = replace(reading, y=below)
        return found

    def num_drawn_points(self) -> dict[str, int]:
        return super().num_drawn_points() | {k: a.num_points for k, a in self._areas.items()}


def area(key: str, label: str, color: str, **options: object) -> Series:
    """A series for the stack: a state, which holds until the next."""
    return Series(key, label, color, SeriesKind.AREA, hold=True, **options)  # type: ignore[arg-type]
