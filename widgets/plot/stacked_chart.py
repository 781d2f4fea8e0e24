"""`StackedAreaChart`: shares of a whole over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from PySide6.QtGui import QColor

from widgets.plot.data import NOTHING
from widgets.plot.items import AreaItem
from widgets.plot.series import EndLabel, Reading, Series, SeriesKind
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import theme

_FILL_ALPHA = 0.72
_NEAR_LIMIT = 0.4  # share of the limit from which on the axis reaches up to it
_LABELS_SHARE = 0.6  # of a plot's height that the labels of all parts may take


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
        labels = super()._end_labels(now) + self._part_labels(now)
        if self._limit is not None and labels:
            text = self._text(self._limit)
            is_above = self._limit > self.view.y_range.high
            labels.append(EndLabel("total ↑" if is_above else "total", text, "limit", self._limit))
        return labels

    def _part_labels(self, now: float) -> list[EndLabel]:
        """At the middle of their bands; none for a part that is printed as zero. In a low plot the
        two largest parts and their sum, at its height."""
        labels, total, nothing = [], 0.0, self._text(0.0)
        for key in self._areas:
            value = self.data.newest(key, now, self.shown_s)
            if value and self.is_shown(key):
                labels.append((value, replace(self.end_label(key, value), y=total + value / 2)))
                total += value
        labels = [(value, one) for value, one in labels if one.value != nothing]
        room = _LABELS_SHARE * self.view.plot_rect.height() / self.view.label_pen.metrics.height()
        if len(labels) > max(2.0, room):
            second = sorted(value for value, _ in labels)[-2]
            labels = [(value, one) for value, one in labels if value >= second][:2]
            labels.append((total, EndLabel("used", self._text(total), "text", total)))
        return [one for _, one in labels]

    def _text(self, value: float) -> str:
        return next(iter(self.data.series.values())).text(value)

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
