"""A live chart over time: lines, steps and samples, with the newest values at the line ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import (
    QAccessible,
    QActionGroup,
    QColor,
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu, QWidget

from engine.units import duration_text, number
from widgets.controls.layouts import hbox, vbox
from widgets.plot.clock import RedrawClock
from widgets.plot.data import NOTHING, ChartData
from widgets.plot.header import ChartHeader
from widgets.plot.items import DotsItem, LineItem
from widgets.plot.link import LEAST_ZOOM_S, ChartGroup
from widgets.plot.marks import MarkLog, SpanLog, SpanPicker
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
    range_for,
)
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, theme

_DOT_ALPHA = 0.45
_ZOOM_MODIFIER = Qt.KeyboardModifier.ControlModifier
_WHEEL_FACTOR = 1.5
WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
"""Time ranges in the menu, in seconds."""


class TimeChart(Plot):
    """Title and unit, a clickable legend, a note, and the plot.

    `heading` replaces title and unit where the title contains the unit. Times are seconds of one
    clock; `time_source` gives its current time, at the right edge. `top`: fixed upper end of the
    axis; an axis from zero is at least `least_span` long. Appending is cheap; drawing happens when
    the `clock` calls `redraw`."""

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
        self._note = note
        self.share_marks(MarkLog(self))
        self._build(heading, value_template)
        self._enter(ChartGroup(parent=self))
        brush = SpanPicker(self, _ZOOM_MODIFIER, (Qt.Key.Key_Z,), LEAST_ZOOM_S)
        brush.picked.connect(self._zoom_to)
        self._make_items()
        self._restyle()

    # Building ---------------------------------------------------------------------------------

    def _build(self, heading: str, value_template: str) -> None:
        self.setProperty("panel", True)
        self.setMinimumSize(220, 130)
        shown = list(self.data.series.values())
        self._header = ChartHeader(heading, shown, self)
        self._header.set_note(self._note)
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

    def join(self, group: ChartGroup) -> None:
        """Share the cursor and the zoom of `group`."""
        self.group.cursor.changed.disconnect(self._follow_cursor)
        self.group.zoomed.disconnect(self._on_zoom)
        self.group.charts.remove(self)
        self._enter(group)

    def _enter(self, group: ChartGroup) -> None:
        self.group = group
        group.charts.append(self)
        group.cursor.changed.connect(self._follow_cursor)
        group.zoomed.connect(self._on_zoom)

    @property
    def marks(self) -> tuple[Mark, ...]:
        return self._marks.marks

    def clear(self) -> None:
        self.data.clear()
        self._marks.clear()
        self.group.zoom_out()
        self._range = None
        self.request_redraw()

    # What is shown ----------------------------------------------------------------------------

    def set_window(self, seconds: float) -> None:
        if seconds != self.window_s:
            self.window_s = float(seconds)
            self.group.zoom_out()
            self._range = None
            self.request_redraw()

    @property
    def shown_s(self) -> float:
        """Seconds from the left to the right edge."""
        zoom = self.group.zoom
        return zoom.seconds if zoom else self.window_s

    @property
    def note(self) -> str:
        return self._header.note

    def set_note(self, text: str) -> None:
        """Show a note in the header, hidden where it does not fit. A zoom replaces it."""
        self._note, zoom = text, self.group.zoom
        shown = f"{number(zoom.seconds, 1)} s · Esc to zoom out" if zoom else text
        if shown != self._header.note:
            self._header.set_note(shown)

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
        zoom = self.group.zoom
        return zoom.end if zoom else self._unzoomed_now

    @property
    def _unzoomed_now(self) -> float:
        return self.time_source() if self._frozen_at is None else self._frozen_at

    # Zoom -------------------------------------------------------------------------------------

    def _zoom_to(self, start: float, end: float) -> None:
        self.group.zoom_to(start, end, self._unzoomed_now)

    def _on_zoom(self) -> None:
        self._range = None
        self.set_note(self._note)
        self.request_redraw()
        if self.isVisible():
            self.redraw()

    def zoom_by(self, factor: float, seconds: float) -> None:
        """Show `factor` times as long a range; the time `seconds` from the right edge stays in its
        place. Beyond the time range, the chart follows the newest values again."""
        at, length = self.now + seconds, self.shown_s * factor
        end = at - seconds * factor
        if length >= self.window_s:
            self.group.zoom_out()
        else:
            end = min(end, self._unzoomed_now)
            self._zoom_to(end - length, end)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.group.zoom_out()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """With Ctrl: zoom around the pointer, as in the timeline."""
        turn = event.angleDelta().y()
        if not event.modifiers() & _ZOOM_MODIFIER or not turn or self.view.empty_text:
            event.ignore()
            return
        place = self.view.mapFrom(self, event.position().toPoint())
        seconds = min(max(self.view.to_seconds(place.x()), -self.shown_s), 0.0)
        self.zoom_by(_WHEEL_FACTOR if turn < 0 else 1 / _WHEEL_FACTOR, seconds)
        event.accept()

    # Drawing ----------------------------------------------------------------------------------

    def wants_redraw(self) -> bool:
        """Whether there is new data, or visible data that moves with time."""
        if super().wants_redraw():
            return True
        is_still = self.is_paused or self.group.zoom is not None
        return not is_still and self.data.is_live(since=self.now - self.window_s)

    def redraw(self) -> None:
        """Update the drawing to now; Qt paints it next."""
        self._dirty = False
        now, view = self.now, self.view
        self.prepare(self.time_source())
        low, high = self._draw_lines(now)
        clouds = {
            key: self.data.samples(key, now, self.shown_s) if self.is_shown(key) else None
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
        self._move_cursor()
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
            x, y = self.data.line_points(key, now, self.shown_s)
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
        zoom = self.group.zoom
        self.view.set_axes(self.shown_s, self._range, zoom.now - zoom.end if zoom else 0.0)

    def _end_labels(self, now: float) -> list[EndLabel]:
        newest = {
            key: self.data.newest(key, now, self.shown_s)
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
        cursor, is_ours = self.group.cursor, self.group.cursor.source is self
        if seconds == self.view.cursor and is_ours == (seconds is not None):
            return
        self._draw_cursor(seconds)
        if seconds is None:
            cursor.leave(self)
        else:
            cursor.point(self.view.now + seconds, self)
        self.pointed.emit(seconds)

    def _follow_cursor(self) -> None:
        """Another view moved the common cursor."""
        if self.isVisible() and self.group.cursor.source is not self:
            self._move_cursor()

    def _move_cursor(self) -> None:
        """Ours stays under the pointer as time passes; that of another view stays at its time."""
        cursor, view = self.group.cursor, self.view
        if cursor.source is self and view.cursor is not None:
            cursor.point(view.now + view.cursor, self)
            self._draw_cursor(view.cursor)
        else:
            seconds = None if cursor.time is None else cursor.time - view.now
            is_shown = seconds is not None and -self.shown_s <= seconds <= 0
            self._draw_cursor(seconds if is_shown else None)

    def _draw_cursor(self, seconds: float | None) -> None:
        view = self.view
        if seconds is not None or view.cursor is not None:
            view.cursor = seconds
            view.readings = () if seconds is None else self.readings_at(view.now + seconds)
            view.viewport().update()

    def readings_at(self, at: float) -> list[Reading]:
        """Values shown by the cross-line at time `at`."""
        return self.data.readings_at(at, self.shown_s)

    def values_table(self) -> ValuesTable:
        """All stored values, one row per time; times in seconds relative to now."""
        return self.data.values_table(self.now)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right move the cross-line, Escape zooms out or hides it."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is not None:
            before = self.view.cursor if self.view.cursor is not None else 0.0
            moved = before + step * self.shown_s / 120
            self.point_at(min(max(moved, -self.shown_s), 0.0))
        elif event.key() == Qt.Key.Key_Escape and self.group.zoom is not None:
            self.group.zoom_out()
        elif event.key() == Qt.Key.Key_Escape and self.view.cursor is not None:
            self.point_at(None)
        else:
            super().keyPressEvent(event)

    # Menu -------------------------------------------------------------------------------------

    def make_menu(self) -> QMenu:
        menu = super().make_menu()
        menu.addSeparator()
        zoom_out = menu.addAction("Zoom out", self.group.zoom_out)
        zoom_out.setEnabled(self.group.zoom is not None)
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
        self.group.zoom_out()
        self.set_window(seconds)
        self.window_changed.emit(seconds)


def _sample_range(values: list[Floats]) -> tuple[float, float]:
    found = [y for y in values if len(y)]
    if not found:
        return math.inf, -math.inf
    return min(float(y.min()) for y in found), max(float(y.max()) for y in found)
