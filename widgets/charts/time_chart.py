"""A live chart over time: lines, steps and samples, the newest values at the lines' ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import (
    QAccessible,
    QColor,
    QContextMenuEvent,
    QHideEvent,
    QKeyEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from widgets.charts.clock import RedrawClock
from widgets.charts.decimate import as_steps, decimate, thin_samples
from widgets.charts.elided_label import ElidedLabel
from widgets.charts.items import DotsItem, LineItem
from widgets.charts.legend import Legend
from widgets.charts.plot_view import PlotView
from widgets.charts.ring import Floats, RingBuffer
from widgets.charts.scale import Range, range_for
from widgets.charts.series import EndLabel, Mark, Reading, Series, SeriesKind
from widgets.charts.table import Column, ValuesTable, join_columns
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

MAX_LINE_POINTS = 600
MAX_DOTS = 600
HISTORY_S = 1200.0
MAX_MARKS = 64
_DOT_ALPHA = 0.45
_NOTHING: Floats = np.empty(0)


class TimeChart(QFrame):
    """Title and unit, a legend that toggles, a note, and the plot.

    Times are seconds of one clock, ascending in each series; `time_source` gives that clock's now.
    Appending is cheap; drawing happens when the `clock` calls `redraw`. The history of a series is
    bounded to `capacity` points and to `HISTORY_S` seconds before its newest one.
    """

    window_changed = Signal(float)  # the user chose another length of time

    def __init__(
        self,
        title: str,
        unit: str,
        series: Sequence[Series],
        *,
        clock: RedrawClock,
        note: str = "",
        empty_text: str = "",
        value_template: str = "0000",
        capacity: int = 8192,
        time_source: Callable[[], float] = time.perf_counter,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.title = title
        self.unit = unit
        self.series = {one.key: one for one in series}
        self.history = {one.key: RingBuffer(capacity) for one in series}
        self.clock = clock
        self.time_source = time_source
        self.empty_text = empty_text
        self.fits_data = False
        self.top: float | None = None  # an upper end of the axis that does not follow the data
        self._hidden: set[str] = set()
        self._appended = dict.fromkeys(self.series, 0)  # of all time, to thin samples stably
        self._marks: list[Mark] = []
        self._window_s = 120.0
        self._frozen_at: float | None = None
        self._dirty = True
        self._range: Range | None = None
        self._build(note, value_template)
        self._make_items()
        self._restyle()
        theme_notifier().changed.connect(self._on_theme_changed)
        clock.add(self)

    # Building ---------------------------------------------------------------------------------

    def _build(self, note: str, value_template: str) -> None:
        self.setProperty("panel", True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(220, 130)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        heading = f"{self.title}, {self.unit}" if self.unit else self.title
        self.setAccessibleName(heading)
        self._title_label = QLabel(heading, self)
        self._title_label.setProperty("role", "title")
        shown = list(self.series.values())
        self.legend = Legend(shown, self)
        self.legend.toggled.connect(self._on_legend)
        self._note = ElidedLabel(note, parent=self)
        header = QHBoxLayout()
        header.setContentsMargins(SPACE_3, 0, SPACE_3, 0)
        header.setSpacing(SPACE_3)
        header.addWidget(self._title_label)
        header.addWidget(self.legend)
        header.addWidget(self._note, 1)
        self.view = PlotView(self.clock, self)
        self.view.hovered.connect(self._on_hover)
        labels = [s.label for s in self.series.values() if s.kind is not SeriesKind.DOTS]
        self.view.value_templates = (max(labels, key=len, default=""), value_template)
        self.view.set_right_margin(self.value_margin)
        self._title_label.setToolTip(note)
        column = QVBoxLayout(self)
        column.setContentsMargins(1, SPACE_2, 1, SPACE_1)
        column.setSpacing(SPACE_1)
        column.addLayout(header)
        plot_row = QHBoxLayout()
        plot_row.setContentsMargins(SPACE_2, 0, SPACE_2, 0)
        plot_row.addWidget(self.view)
        column.addLayout(plot_row, 1)

    @property
    def value_margin(self) -> float:
        """Pixels that the widest label with the widest value needs. Charts above each other get
        the largest of theirs (`set_value_margin`), so that their times line up."""
        return self.view.margin_for_values()

    def set_value_margin(self, pixels: float) -> None:
        self.view.set_right_margin(pixels)

    def _make_items(self) -> None:
        self._lines: dict[str, LineItem] = {}
        self._dots: dict[str, DotsItem] = {}
        for z, one in enumerate(self.series.values()):
            item: LineItem | DotsItem
            if one.kind is SeriesKind.DOTS:
                item = self._dots[one.key] = DotsItem()
            else:
                item = self._lines[one.key] = LineItem()
            item.setZValue(z - (100 if one.kind is SeriesKind.DOTS else 0))
            self.view.box.addItem(item, ignoreBounds=True)

    def _on_theme_changed(self) -> None:
        self.view.apply_theme()
        self._restyle()
        self.request_redraw()

    def _restyle(self) -> None:
        table = theme()
        for key, line in self._lines.items():
            one = self.series[key]
            line.set_style(QColor(table.line_color(one.color)), one.width, one.dashed)
        for key, dots in self._dots.items():
            dots.set_color(table.color(self.series[key].color, _DOT_ALPHA))

    # Data -------------------------------------------------------------------------------------

    def append(self, key: str, at: float, value: float) -> None:
        """One value of series `key` at time `at`; NaN is a gap."""
        ring = self.history[key]
        ring.append(at, value)
        self._appended[key] += 1
        self._after_append(ring, at)

    def extend(self, key: str, times: ArrayLike, values: ArrayLike) -> None:
        """Many values at once."""
        new_times = np.asarray(times, dtype=float)
        if not len(new_times):
            return
        ring = self.history[key]
        ring.extend(new_times, values)
        self._appended[key] += len(new_times)
        self._after_append(ring, float(new_times[-1]))

    def _after_append(self, ring: RingBuffer, newest: float) -> None:
        if ring.times[0] < newest - HISTORY_S:
            ring.drop_before(newest - HISTORY_S)
        self.request_redraw()

    def mark(self, at: float, text: str) -> None:
        """A dashed vertical line with a text: something was changed at time `at`."""
        self._marks = [*self._marks[1 - MAX_MARKS :], Mark(at, text)]
        self.request_redraw()

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks)

    def clear(self) -> None:
        """Forget all values and marks."""
        for ring in self.history.values():
            ring.clear()
        self._marks.clear()
        self._range = None
        self.request_redraw()

    @property
    def is_empty(self) -> bool:
        return not any(len(ring) for ring in self.history.values())

    # What is shown ----------------------------------------------------------------------------

    @property
    def window_s(self) -> float:
        return self._window_s

    def set_window(self, seconds: float) -> None:
        """How much time the plot shows."""
        if seconds != self._window_s:
            self._window_s = float(seconds)
            self._range = None
            self.request_redraw()

    def set_note(self, text: str) -> None:
        """What the figures mean, or a result; given up where the row is too narrow."""
        self._note.set_text(text)
        self._title_label.setToolTip(text)

    @property
    def note(self) -> str:
        return self._note.text()

    def set_fit_to_data(self, fits: bool) -> None:
        """Let the axis follow the data instead of starting at zero."""
        self.fits_data = fits
        self._range = None
        self.request_redraw()

    def is_shown(self, key: str) -> bool:
        return key not in self._hidden

    def set_shown(self, key: str, shown: bool) -> None:
        """Show or hide a series, as its legend key does."""
        self.legend.set_shown(key, shown)

    def _on_legend(self, key: str, shown: bool) -> None:
        (self._hidden.discard if shown else self._hidden.add)(key)
        self._range = None
        self.request_redraw()

    def set_paused(self, paused: bool) -> None:
        """Stop time at now for reading; values go on being recorded."""
        if paused != self.is_paused:
            self._frozen_at = self.time_source() if paused else None
            self.request_redraw()

    @property
    def is_paused(self) -> bool:
        return self._frozen_at is not None

    @property
    def now(self) -> float:
        """The time at the right edge."""
        return self.time_source() if self._frozen_at is None else self._frozen_at

    # Drawing ----------------------------------------------------------------------------------

    def request_redraw(self) -> None:
        self._dirty = True
        if self.isVisible():
            self.clock.wake()

    def wants_redraw(self) -> bool:
        """Something new, or something on the plot that moves as time passes."""
        if self._dirty:
            return True
        if self.is_paused:
            return False
        left = self.now - self._window_s
        return any((last := ring.last()) and last[0] > left for ring in self.history.values())

    def redraw(self) -> None:
        """Bring the drawing up to now (the painting itself follows from Qt)."""
        self._dirty = False
        now = self.now
        self.prepare(now)
        low, high = self._draw_lines(now)
        clouds = self._samples_in_window(now)
        if not math.isfinite(high):
            low, high = _sample_range(clouds)
        self._set_range(low, high)
        self._draw_dots(clouds, now)
        view = self.view
        view.now = now
        view.marks = self._marks
        view.end_labels = self._end_labels(now)
        view.set_empty_text(self.empty_text if self.is_empty else "")
        if view.cursor is not None:
            view.readings = self.readings_at(now + view.cursor)
        if QAccessible.isActive():
            self.setAccessibleDescription(self.newest_values())
        view.viewport().update()

    def prepare(self, now: float) -> None:
        """For subclasses: derive series that are computed when they are drawn."""

    def line_points(self, key: str, now: float) -> tuple[Floats, Floats]:
        """What is drawn of a line: times relative to now, values, decimated."""
        one, left = self.series[key], now - self._window_s
        times, values = self.history[key].since(left)
        end = int(np.searchsorted(times, now, side="right"))  # when paused, later ones wait
        times, values = times[:end], values[:end]
        if one.hold and end and times[-1] < now:
            times, values = np.append(times, now), np.append(values, values[-1])
        if one.kind is SeriesKind.STEPS:
            times, values = as_steps(times, values)
        times, values = decimate(times, values, self._window_s, MAX_LINE_POINTS)
        return times - now, values

    def _draw_lines(self, now: float) -> tuple[float, float]:
        """Draw every line; their smallest and largest value."""
        low, high = math.inf, -math.inf
        for key, line in self._lines.items():
            if key in self._hidden:
                line.set_points(_NOTHING, _NOTHING)
                continue
            x, y = self.line_points(key, now)
            if len(y):
                low, high = np.fmin(low, np.fmin.reduce(y)), np.fmax(high, np.fmax.reduce(y))
            line.set_points(x, y)
        return float(low), float(high)

    def _samples_in_window(self, now: float) -> dict[str, tuple[Floats, Floats]]:
        clouds = {}
        for key in self._dots.keys() - self._hidden:
            times, values = self.history[key].times, self.history[key].values
            first, end = np.searchsorted(times, (now - self._window_s, now))
            running = self._appended[key] - len(times) + int(first)
            clouds[key] = thin_samples(
                times[first:end], values[first:end], running, self._window_s, MAX_DOTS
            )
        return clouds

    def _draw_dots(self, clouds: dict[str, tuple[Floats, Floats]], now: float) -> None:
        """Samples beyond the axis are drawn at its upper end and counted."""
        above = 0
        top = self.view.y_range.high
        for key, dots in self._dots.items():
            times, values = clouds.get(key, (_NOTHING, _NOTHING))
            above += int(np.count_nonzero(values > top))
            dots.set_points(times - now, np.minimum(values, top))
        self.view.num_above = above

    def _set_range(self, low: float, high: float) -> None:
        if self.top is not None and not self.fits_data and high <= self.top:
            self._range = Range(0.0, self.top)
        else:
            self._range = range_for(low, high, self._range, from_zero=not self.fits_data)
        self.view.set_axes(self._window_s, self._range)

    def _end_labels(self, now: float) -> list[EndLabel]:
        labels = []
        for key in self._lines.keys() - self._hidden:
            found = self.history[key].at(now)
            if (found is not None and found[0] >= now - self._window_s) or self._holds(key, found):
                assert found is not None
                labels.append(self.end_label(key, found[1]))
        order = list(self.series.values())
        return sorted(labels, key=lambda label: [s.color for s in order].index(label.color))

    def _holds(self, key: str, found: tuple[float, float] | None) -> bool:
        return found is not None and self.series[key].hold

    def end_label(self, key: str, value: float) -> EndLabel:
        one = self.series[key]
        return EndLabel(one.label, one.text(value), one.color, value)

    def num_drawn_points(self) -> dict[str, int]:
        """How many points of each series the last redraw gave to the painter."""
        items = {**self._lines, **self._dots}
        return {key: item.num_points for key, item in items.items()}

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.request_redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_legend()

    def set_available(self, key: str, available: bool) -> None:
        """Take the legend key of a series that has no data away, or put it back."""
        self.legend.set_available(key, available)
        self._fit_legend()

    def _fit_legend(self) -> None:
        self.legend.fit(self.width() - self._title_label.sizeHint().width() - 4 * SPACE_3)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._on_hover(None)

    # Reading ----------------------------------------------------------------------------------

    def _on_hover(self, seconds: float | None) -> None:
        if seconds == self.view.cursor:
            return
        self.view.cursor = seconds
        if seconds is not None:
            self.view.readings = self.readings_at(self.view.now + seconds)
        self.view.viewport().update()

    def readings_at(self, at: float) -> list[Reading]:
        """The exact values of what is shown at time `at`: of lines the nearest point, of steps
        the one in force, of samples the nearest if it is within a hundredth of the window."""
        readings = []
        for key, one in self.series.items():
            if key in self._hidden:
                continue
            ring = self.history[key]
            found = ring.at(at) if one.kind is SeriesKind.STEPS or one.hold else ring.nearest(at)
            near = self._window_s / 100 if one.kind is SeriesKind.DOTS else self._window_s / 20
            if found is None or (not one.hold and abs(found[0] - at) > near):
                continue
            readings.append(
                Reading(one.label, self.exact_text(found[1]), one.color, found[0], found[1])
            )
        return readings

    def exact_text(self, value: float) -> str:
        """A value with its unit, with more digits than a label has."""
        decimals = 0 if float(value).is_integer() else 2
        return f"{value:,.{decimals}f} {self.unit}".rstrip()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right move the cross-line, Escape takes it away."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is not None:
            before = self.view.cursor if self.view.cursor is not None else 0.0
            moved = before + step * self._window_s / 120
            self._on_hover(min(max(moved, -self._window_s), 0.0))
        elif event.key() == Qt.Key.Key_Escape and self.view.cursor is not None:
            self._on_hover(None)
        else:
            super().keyPressEvent(event)

    def values_table(self) -> ValuesTable:
        """All values that are kept, one row per time; times in seconds relative to now."""
        unit = f" ({self.unit})" if self.unit else ""
        columns = [
            Column(one.label + unit, self.history[key].times, self.history[key].values)
            for key, one in self.series.items()
        ]
        return join_columns("time (s)", columns, self.now)

    def newest_values(self) -> str:
        """The newest value of every series in words, as a screen reader should say it."""
        parts = [
            f"{one.label} {one.text(last[1])} {self.unit}".rstrip()
            for key, one in self.series.items()
            if (last := self.history[key].last()) and not math.isnan(last[1])
        ]
        return ", ".join(parts) or self.empty_text

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        from widgets.charts.menu import chart_menu  # the menu knows the chart

        menu = chart_menu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())


def _sample_range(clouds: dict[str, tuple[Floats, Floats]]) -> tuple[float, float]:
    values = [v for _, v in clouds.values() if len(v)]
    if not values:
        return math.inf, -math.inf
    every = np.concatenate(values)
    return float(every.min()), float(every.max())
