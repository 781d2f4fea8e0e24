"""A live chart over time: lines, steps and samples, with the newest values at the line ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible, QKeyEvent
from PySide6.QtWidgets import QMenu, QWidget

from engine.units import duration_text, number
from widgets.controls.layouts import hbox, vbox
from widgets.plot.axis import Range, Unit, high_without_outliers, log_range, range_for, shown_unit
from widgets.plot.chart_menu import extend_menu
from widgets.plot.clock import RedrawClock
from widgets.plot.curves import Curves
from widgets.plot.data import NOTHING, ChartData
from widgets.plot.header import ChartHeader
from widgets.plot.series import PREDICTED, EndLabel, Floats, Reading, Series, SeriesKind
from widgets.plot.table import Column, ValuesTable
from widgets.plot.time_view import TimeView
from widgets.theme.theme import SPACE_1, SPACE_2

_HINT = "Ctrl+drag or Ctrl+scroll to zoom, double-click or Esc to zoom out"


class TimeChart(TimeView):
    """Title and unit, a clickable legend, a note, and the plot.

    `heading` replaces title and unit where the title contains the unit. `top`: fixed upper end of
    the axis; an axis from zero is at least `least_span` long. Appending is cheap; drawing happens
    when the `clock` calls `redraw`."""

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
        super().__init__(heading, title=title, clock=clock, time_source=time_source, parent=parent)
        self.data = ChartData(series, unit, capacity)
        self.empty_text = empty_text
        self.fits_data = self.is_log = False
        self.top, self.least_span = top, least_span
        self._range: Range | None = None
        self._unit = Unit(unit)
        self._note = note
        self._points: dict[str, tuple[Floats, Floats]] = {}
        self._build(heading, value_template)
        self._make_items()
        self._restyle()
        if PREDICTED in self.data.series:
            self.set_available(PREDICTED, False)

    # Building ---------------------------------------------------------------------------------

    def _build(self, heading: str, value_template: str) -> None:
        self.setProperty("panel", True)
        self.setMinimumSize(220, 120)
        shown = list(self.data.series.values())
        self._header = ChartHeader(heading, shown, self)
        self._header.hint = _HINT
        self._header.set_note(self._note)
        self.legend = self._header.legend
        for name, key in self.legend.keys.items():
            key.toggled.connect(partial(self._on_legend, name))
        names = [one.label for one in shown if one.kind is not SeriesKind.DOTS]
        self.view.value_templates = (max(names, key=len, default=""), value_template)
        plot_row = hbox(self.view, margins=(SPACE_2, 0, SPACE_2, 0))
        margins = (1, SPACE_2, 1, SPACE_1)
        vbox(self._header, (plot_row, 1), of=self, spacing=SPACE_1, margins=margins)

    def _make_items(self) -> None:
        self.curves = Curves(self.data.series.values(), self.view.box)

    def apply_theme(self) -> None:
        self.view.apply_theme()
        self._restyle()
        self._header.fit()
        self.request_redraw()

    def _restyle(self) -> None:
        self.curves.restyle()

    # Data -------------------------------------------------------------------------------------

    def append(self, key: str, at: float, value: float) -> None:
        """One value of series `key` at time `at`; NaN is a gap."""
        self.data.append(key, at, value)
        self.request_redraw()

    def extend(self, key: str, times: ArrayLike, values: ArrayLike) -> None:
        self.data.extend(key, times, values)
        self.request_redraw()

    def show_prediction(self, times: ArrayLike, values: ArrayLike) -> None:
        """Replace the points of the series PREDICTED, if there is one; without any it is hidden."""
        if PREDICTED in self.data.series:
            self.data.replace(PREDICTED, times, values)
            self.set_available(PREDICTED, len(self.data.history[PREDICTED]) > 0)
            self.request_redraw()

    def clear(self) -> None:
        self.data.clear()
        self._marks.clear()
        self.group.zoom_out()
        self.view.show_strip(False)
        self._range = None
        self.request_redraw()

    # What is shown ----------------------------------------------------------------------------

    @property
    def note(self) -> str:
        return self._header.note

    def set_note(self, text: str) -> None:
        """Show a note in the header, hidden where it does not fit. A zoom replaces it."""
        self._note, zoom = text, self.group.zoom
        shown = f"{number(zoom.seconds, 1)} s · Esc to zoom out" if zoom else text
        if shown != self._header.note:
            self._header.set_note(shown)

    def on_range(self) -> None:
        self._range = None
        self.set_note(self._note)
        self.request_redraw()

    def has_data_since(self, at: float) -> bool:
        return self.data.is_live(since=at)

    def set_fit_to_data(self, fits: bool) -> None:
        """Let the axis follow the data instead of starting at zero."""
        self.fits_data = fits
        self.is_log &= not fits
        self._range = None
        self.request_redraw()

    @property
    def may_be_log(self) -> bool:
        """Stacked shares add up on a linear axis only; a percentage has its own end."""
        kinds = {one.kind for one in self.data.series.values()}
        return self.top is None and SeriesKind.AREA not in kinds

    def set_log(self, is_log: bool) -> None:
        """Let equal distances on the axis be equal factors. Zero is drawn at its lower end."""
        self.is_log = is_log and self.may_be_log
        self.fits_data &= not self.is_log
        self._range = None
        self.request_redraw()
        if self.isVisible():
            self.redraw()

    def is_shown(self, key: str) -> bool:
        return key not in self.data.hidden

    def _on_legend(self, key: str, shown: bool) -> None:
        (self.data.hidden.discard if shown else self.data.hidden.add)(key)
        self._range = None
        self.request_redraw()

    def set_available(self, key: str, available: bool) -> None:
        """Show or hide the legend entry of a series, e.g. of one without data."""
        if available != self.is_available(key):
            self.legend.keys[key].setVisible(available)
            self._header.fit()

    def is_available(self, key: str) -> bool:
        return not self.legend.keys[key].isHidden()

    # Drawing ----------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Update the drawing to now; Qt paints it next."""
        now, view = self.now, self.view
        is_beat = self._range is None or self.clock is None or self.clock.is_beat
        self._dirty = not is_beat  # the labels wait for the next
        self.prepare(self.time_source())
        self._set_range(*self._draw_lines(now))
        self._place_curves(now)
        view.now = now
        view.marks = self.marks
        if self.marks or view.above_texts[0]:
            view.show_strip(True)  # and leave it, so that the plot keeps its place
        view.spans = self._spans.spans if self._spans is not None else ()
        view.legend_names = self.legend.names
        if is_beat:
            view.set_end_labels(self._end_labels(now))
        view.set_empty_text(self.empty_text if self.data.is_empty else "")
        self.move_cursor()
        if QAccessible.isActive():
            self.setAccessibleDescription(self.data.newest_values() or self.empty_text)
        view.viewport().update()

    def prepare(self, now: float) -> None:
        """Hook of subclasses: derive series that are computed when drawn."""

    def _draw_lines(self, now: float) -> tuple[float, float]:
        """Find the points of the lines. Returns the range that the axis must hold: without
        outliers on a linear axis, above zero on a logarithmic one."""
        self._points = {
            key: self.data.line_points(key, now, self.shown_s)
            for key in self.curves.lines
            if self.is_shown(key)
        }
        lines = [(y, self.data.series[key].held) for key, (_, y) in self._points.items()]
        clouds = [
            (self._cloud(key, now), self.data.series[key].held)
            for key in self.curves.dots
            if self.is_shown(key)
        ]
        both = lines + clouds
        if self.is_log:
            positive = [y[y > 0] for y, _ in both]
            return _least(positive), max((float(y.max()) for y in positive if len(y)), default=0.0)
        low = _least([y for y, _ in lines])
        return min(low, _least([y for y, _ in clouds])), high_without_outliers(both)

    def _cloud(self, key: str, now: float) -> Floats:
        """Samples that represent all: the extremes among them, unless outliers may be left out."""
        if self.is_log or self.data.series[key].held == 1:
            return self.data.samples(key, now, self.shown_s)[1]
        return self.data.spread(key, now, self.shown_s)

    def _place_curves(self, now: float) -> None:
        """Draw the curves on the axis; samples beyond it are counted."""
        shown, length = self.view.y_range, self.shown_s
        visible = filter(self.is_shown, self.curves.dots)
        clouds = {key: self.data.samples(key, now, length) for key in visible}
        has_outliers = self.curves.place(self._points, clouds, shown, length)
        above = self.data.above(now, length, shown.high) if has_outliers else NOTHING
        self.view.above_texts = ("", "")
        if len(above):
            most = self.value_text(float(above.max()))
            count = number(len(above), 0)
            self.view.above_texts = (f"▲{count}", f"▲ {count} above, max {most}")

    def _set_range(self, low: float, high: float) -> None:
        if self.is_log:
            self._range = log_range(low, high, self._range)
        elif self.top is not None and not self.fits_data and high <= self.top:
            self._range = Range(0.0, self.top)
        else:
            self._range = range_for(
                low, high, self._range, from_zero=not self.fits_data, least_span=self.least_span
            )
        unit = shown_unit(self.data.unit, self._range.high)
        if unit != self._unit:
            self._unit = unit
            self._header.set_title(f"{self.title}, {unit.name}")
            self.setAccessibleName(self._header.title)
        zoom = self.group.zoom
        age = zoom.now - zoom.end if zoom else 0.0
        self.view.set_axes(self.shown_s, self._range, age, unit)

    def _end_labels(self, now: float) -> list[EndLabel]:
        newest = {
            key: self.data.newest(key, now, self.shown_s)
            for key in self.curves.lines
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
        if self._unit.factor != 1:
            text = self._unit.text(value)
        elif self.data.unit == "ms" and value >= 1000:  # above the axis
            text = self.value_text(value)
        else:
            text = one.text(value)
        return EndLabel(one.label, text, one.color, value)

    def value_text(self, value: float) -> str:
        """A value with the unit that fits it."""
        if self.data.unit == "ms":
            return duration_text(value / 1e3)
        return f"{number(value, 0 if value >= 10 else 1)} {self.data.unit}".rstrip()

    def num_drawn_points(self) -> dict[str, int]:
        """Points of each series in the last redraw."""
        return self.curves.num_points()

    # Reading ----------------------------------------------------------------------------------

    def readings_at(self, at: float) -> list[Reading]:
        """Values shown by the cross-line at time `at`."""
        absent = {key.text() for key in self.legend.keys.values() if key.isHidden()}
        found = self.data.readings_at(at, self.shown_s)
        return [reading for reading in found if reading.y or reading.label not in absent]

    def values_table(self) -> ValuesTable:
        return self.group.values_table(self)

    def columns(self, start: float, end: float) -> list[Column]:
        return self.data.columns(start, end)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """L switches between a linear and a logarithmic axis."""
        if event.key() == Qt.Key.Key_L and not event.modifiers() and self.may_be_log:
            self.set_log(not self.is_log)
        else:
            super().keyPressEvent(event)

    def make_menu(self) -> QMenu:
        menu = super().make_menu()
        extend_menu(menu, self)
        return menu

    def choose_window(self, seconds: float) -> None:
        """The user chose another length of time."""
        self.group.zoom_out()
        self.set_window(seconds)
        self.window_changed.emit(seconds)


def _least(groups: Sequence[Floats]) -> float:
    """The smallest value, inf without any."""
    return min((float(np.fmin.reduce(y)) for y in groups if len(y)), default=math.inf)
