"""A live chart over time: lines, steps and samples, with the newest values at the line ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAccessible, QActionGroup, QColor, QHideEvent, QKeyEvent
from PySide6.QtWidgets import QMenu, QWidget

from widgets.controls.layouts import hbox, vbox
from widgets.plot.clock import RedrawClock
from widgets.plot.data import NOTHING, ChartData
from widgets.plot.header import ChartHeader
from widgets.plot.items import DotsItem, LineItem
from widgets.plot.marks import MarkLog, SpanLog
from widgets.plot.painted import Plot
from widgets.plot.plot_view import PlotView
from widgets.plot.series import (
    EndLabel,
    Floats,
    Mark,
    Range,
    Reading,
    Series,
    SeriesKind,
    duration_text,
    range_for,
)
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, theme

_DOT_ALPHA = 0.45
WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
"""Time ranges in the menu, in seconds."""


class TimeChart(Plot):
    """Title and unit, a clickable legend, a note, and the plot.

    `heading` replaces title and unit where the title contains the unit. Times are seconds of one
    clock; `time_source` gives its current time, at the right edge. `top`: fixed upper end of the
    axis; an axis from zero is at least `least_span` long. Appending is cheap; drawing happens when
    the `clock` calls `redraw`."""

    focus = Qt.FocusPolicy.TabFocus
    window_changed = Signal(float)  # the user chose another length of time
    pointed = Signal(object)  # where the cross-line is, relative to now; None: nowhere

    def __init__(
        self,
        title: str,
        unit: str,
        series: Sequence[Series],
        *,
        clock: RedrawClock,
        heading: str = "",
        note: str = "",
        empty_text: str = "",
        value_template: str = "0000",
        top: float | None = None,
        least_span: float = 1.0,
        capacity: int = 8192,
        time_source: Callable[[], float] = time.perf_counter,
        parent: QWidget | None = None,
    ) -> None:
        heading = heading or (f"{title}, {unit}" if unit else title)
        super().__init__(heading, title=title, clock=clock, parent=parent)
        self.data = ChartData(series, unit, capacity)
        self.time_source = time_source
        self.empty_text = empty_text
        self.fits_data = False
        self.top, self.least_span = top, least_span
        self.window_s = 120.0
        self._frozen_at: float | None = None
        self._range: Range | None = None
        self._marks: MarkLog
        self._spans: SpanLog | None = None
        self.share_marks(MarkLog(self))
        self._build(heading, note, value_template)
        self._make_items()
        self._restyle()

    # Building ---------------------------------------------------------------------------------

    def _build(self, heading: str, note: str, value_template: str) -> None:
        self.setProperty("panel", True)
        self.setMinimumSize(220, 130)
        shown = list(self.data.series.values())
        self._header = ChartHeader(heading, shown, self)
        self._header.set_note(note)
        self.legend = self._header.legend
        for name, key in self.legend.keys.items():
            key.toggled.connect(partial(self._on_legend, name))
        self.view = PlotView(self.clock, self)
        self.view.hovered.connect(self.point_at)
        names = [one.label for one in shown if one.kind is not SeriesKind.DOTS]
        self.view.value_templates = (max(names, key=len, default=""), value_template)
        plot_row = hbox(self.view, margins=(SPACE_2, 0, SPACE_2, 0))
        margins = (1, SPACE_2, 1, SPACE_1)
        vbox(self._header, (plot_row, 1), of=self, spacing=SPACE_1, margins=margins)

    def _make_items(self) -> None:
        self._lines: dict[str, LineItem] = {}
        self._dots: dict[str, DotsItem] = {}
        for z, one in enumerate(self.data.series.values()):
            item: LineItem | DotsItem
            if one.kind is SeriesKind.DOTS:
                item = self._dots[one.key] = DotsItem()
            elif one.kind is not SeriesKind.AREA:
                item = self._lines[one.key] = LineItem()
            else:
                continue
            item.setZValue(z - (100 if one.kind is SeriesKind.DOTS else 0))
            self.view.box.addItem(item, ignoreBounds=True)

    def apply_theme(self) -> None:
        self.view.apply_theme()
        self._restyle()
        self._header.fit()
        self.request_redraw()

    def _restyle(self) -> None:
        table = theme()
        for key, line in self._lines.items():
            one = self.data.series[key]
            line.set_style(QColor(table.line_color(one.color)), one.width, one.dashed)
        for key, dots in self._dots.items():
            dots.set_color(table.color(self.data.series[key].color, _DOT_ALPHA))

    # Data -------------------------------------------------------------------------------------

    def append(self, key: str, at: float, value: float) -> None:
        """One value of series `key` at time `at`; NaN is a gap."""
        self.data.append(key, at, value)
        self.request_redraw()

    def extend(self, key: str, times: ArrayLike, values: ArrayLike) -> None:
        self.data.extend(key, times, values)
        self.request_redraw()

    def share_marks(self, log: MarkLog) -> None:
        """Show the marks of `log`, possibly together with other charts."""
        self._marks = log
        log.changed.connect(self.request_redraw)

    def share_spans(self, log: SpanLog) -> None:
        self._spans = log
        log.changed.connect(self.request_redraw)

    @property
    def marks(self) -> tuple[Mark, ...]:
        return self._marks.marks

    def clear(self) -> None:
        self.data.clear()
        self._marks.clear()
        self._range = None
        self.request_redraw()

    # What is shown ----------------------------------------------------------------------------

    def set_window(self, seconds: float) -> None:
        if seconds != self.window_s:
            self.window_s = float(seconds)
            self._range = None
            self.request_redraw()

    @property
    def note(self) -> str:
        return self._header.note

    def set_note(self, text: str) -> None:
        """Show a note in the header, hidden where it does not fit."""
        self._header.set_note(text)

    def set_fit_to_data(self, fits: bool) -> None:
        """Let the axis follow the data instead of starting at zero."""
        self.fits_data = fits
        self._range = None
        self.request_redraw()

    def is_shown(self, key: str) -> bool:
        return key not in self.data.hidden

    def _on_legend(self, key: str, shown: bool) -> None:
        (self.data.hidden.discard if shown else self.data.hidden.add)(key)
        self._range = None
        self.request_redraw()

    def set_available(self, key: str, available: bool) -> None:
        """Show or hide the legend entry of a series, e.g. of one without data."""
        self.legend.keys[key].setVisible(available)
        self._header.fit()

    def set_paused(self, paused: bool) -> None:
        """Stop the displayed time for reading; values are still recorded."""
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

    def wants_redraw(self) -> bool:
        """Whether there is new data, or visible data that moves with time."""
        if super().wants_redraw():
            return True
        return not self.is_paused and self.data.is_live(since=self.now - self.window_s)

    def redraw(self) -> None:
        """Update the drawing to now; Qt paints it next."""
        self._dirty = False
        now, view = self.now, self.view
        self.prepare(now)
        low, high = self._draw_lines(now)
        clouds = {
            key: self.data.samples(key, now, self.window_s) if self.is_shown(key) else None
            for key in self._dots
        }
        if not math.isfinite(high):
            low, high = _sample_range([y for cloud in clouds.values() if cloud for y in cloud[1:]])
        self._set_range(low, high)
        self._draw_dots(clouds)
        view.now = now
        view.marks = self.marks
        view.spans = self._spans.spans if self._spans is not None else ()
        view.end_labels = self._end_labels(now)
        view.set_empty_text(self.empty_text if self.data.is_empty else "")
        if view.cursor is not None:
            view.readings = self.readings_at(now + view.cursor)
        if QAccessible.isActive():
            self.setAccessibleDescription(self.data.newest_values() or self.empty_text)
        view.viewport().update()

    def prepare(self, now: float) -> None:
        """Hook of subclasses: derive series that are computed when drawn."""

    def _draw_lines(self, now: float) -> tuple[float, float]:
        low, high = math.inf, -math.inf
        for key, line in self._lines.items():
            if not self.is_shown(key):
                line.set_points(NOTHING, NOTHING)
                continue
            x, y = self.data.line_points(key, now, self.window_s)
            if len(y):
                low, high = np.fmin(low, np.fmin.reduce(y)), np.fmax(high, np.fmax.reduce(y))
            line.set_points(x, y)
        return float(low), float(high)

    def _draw_dots(self, clouds: dict[str, tuple[Floats, Floats] | None]) -> None:
        """Samples beyond the axis are drawn at its upper end, and counted."""
        top = self.view.y_range.high
        self.view.num_above = 0
        for key, dots in self._dots.items():
            x, y = clouds[key] or (NOTHING, NOTHING)
            self.view.num_above += int(np.count_nonzero(y > top))
            dots.set_points(x, np.minimum(y, top))

    def _set_range(self, low: float, high: float) -> None:
        if self.top is not None and not self.fits_data and high <= self.top:
            self._range = Range(0.0, self.top)
        else:
            self._range = range_for(
                low, high, self._range, from_zero=not self.fits_data, least_span=self.least_span
            )
        self.view.set_axes(self.window_s, self._range)

    def _end_labels(self, now: float) -> list[EndLabel]:
        newest = {
            key: self.data.newest(key, now, self.window_s)
            for key in self._lines
            if self.is_shown(key)
        }
        return [
            self.end_label(key, value)
            for key, value in newest.items()
            if value is not None and not math.isnan(value)
        ]

    def end_label(self, key: str, value: float) -> EndLabel:
        """The value printed at the line end of series `key`."""
        one = self.data.series[key]
        return EndLabel(one.label, one.text(value), one.color, value)

    def num_drawn_points(self) -> dict[str, int]:
        """Points of each series in the last redraw."""
        items = {**self._lines, **self._dots}
        return {key: item.num_points for key, item in items.items()}

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.point_at(None)

    # Reading ----------------------------------------------------------------------------------

    def point_at(self, seconds: float | None) -> None:
        """Put the cross-line at a time relative to now; None hides it."""
        if seconds == self.view.cursor:
            return
        self.view.cursor = seconds
        if seconds is not None:
            self.view.readings = self.readings_at(self.view.now + seconds)
        self.view.viewport().update()
        self.pointed.emit(seconds)

    def readings_at(self, at: float) -> list[Reading]:
        """Values shown by the cross-line at time `at`."""
        return self.data.readings_at(at, self.window_s)

    def values_table(self) -> ValuesTable:
        """All stored values, one row per time; times in seconds relative to now."""
        return self.data.values_table(self.now)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right move the cross-line, Escape hides it."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is not None:
            before = self.view.cursor if self.view.cursor is not None else 0.0
            moved = before + step * self.window_s / 120
            self.point_at(min(max(moved, -self.window_s), 0.0))
        elif event.key() == Qt.Key.Key_Escape and self.view.cursor is not None:
            self.point_at(None)
        else:
            super().keyPressEvent(event)

    # Menu -------------------------------------------------------------------------------------

    def make_menu(self) -> QMenu:
        menu = super().make_menu()
        menu.addSeparator()
        for text, value, change in (
            ("Fit axis to data", self.fits_data, self.set_fit_to_data),
            ("Pause", self.is_paused, self.set_paused),
        ):
            action = menu.addAction(text)
            action.setCheckable(True)
            action.setChecked(value)
            action.toggled.connect(change)
        lengths = menu.addMenu("Time range")
        group = QActionGroup(lengths)
        for seconds in WINDOWS_S:
            action = lengths.addAction(duration_text(seconds))
            action.setCheckable(True)
            action.setChecked(seconds == self.window_s)
            action.triggered.connect(partial(self._choose_window, seconds))
            group.addAction(action)
        return menu

    def _choose_window(self, seconds: float, *_: object) -> None:
        self.set_window(seconds)
        self.window_changed.emit(seconds)


def _sample_range(values: list[Floats]) -> tuple[float, float]:
    found = [y for y in values if len(y)]
    if not found:
        return math.inf, -math.inf
    return min(float(y.min()) for y in found), max(float(y.max()) for y in found)
