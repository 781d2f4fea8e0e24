"""`TimeView`: which part of time a chart shows, and where it points."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from widgets.controls.keys import LocalKeys
from widgets.plot.clock import RedrawClock
from widgets.plot.link import LEAST_ZOOM_S, ChartGroup
from widgets.plot.marks import MarkLog, SpanLog, SpanPicker
from widgets.plot.painted import Plot
from widgets.plot.plot_view import PlotView
from widgets.plot.series import Mark, Reading
from widgets.plot.table import Column

_ZOOM_MODIFIER = Qt.KeyboardModifier.ControlModifier
_WHEEL_FACTOR = 1.5


class TimeView(Plot):
    """A plot over time, of the last `window_s` seconds or of a zoomed range, with a cross-line.

    Times are seconds of one clock; `time_source` gives its current time."""

    window_changed = Signal(float)  # the user chose another length of time
    pointed = Signal(object)  # where the cross-line is, relative to the right edge; None: nowhere

    def __init__(
        self,
        name: str,
        *,
        title: str,
        clock: RedrawClock,
        time_source: Callable[[], float] = time.perf_counter,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(name, title=title, clock=clock, parent=parent)
        self.time_source = time_source
        self.window_s = 120.0
        self._frozen_at: float | None = None
        self._marks: MarkLog
        self._spans: SpanLog | None = None
        self.view = PlotView(self.clock, self)
        self.view.hovered.connect(self.point_at)
        self.share_marks(MarkLog(self))
        self._enter(ChartGroup(parent=self))
        LocalKeys(self, {"Esc": lambda: self.group.zoom_out()}, lambda: self.group.zoom is not None)
        brush = SpanPicker(self, _ZOOM_MODIFIER, (Qt.Key.Key_Z,), LEAST_ZOOM_S)
        brush.picked.connect(self._zoom_to)

    # For subclasses ---------------------------------------------------------------------------

    def readings_at(self, at: float) -> Sequence[Reading]:
        """Values shown by the cross-line at time `at`."""
        raise NotImplementedError

    def columns(self, start: float, end: float) -> list[Column]:
        """The stored values of each series with start <= time <= end."""
        raise NotImplementedError

    def has_data_since(self, at: float) -> bool:
        raise NotImplementedError

    def on_range(self) -> None:
        """Another range of time is shown."""
        self.request_redraw()

    # Shared with other charts -----------------------------------------------------------------

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

    # The range of time ------------------------------------------------------------------------

    def set_window(self, seconds: float) -> None:
        if seconds != self.window_s:
            self.window_s = float(seconds)
            self.group.zoom_out()
            self.on_range()

    @property
    def shown_s(self) -> float:
        """Seconds from the left to the right edge."""
        zoom = self.group.zoom
        return zoom.seconds if zoom else self.window_s

    def set_paused(self, paused: bool) -> None:
        """Stop the displayed time for reading; values are still recorded."""
        if paused != self.is_paused:
            self._frozen_at = self.time_source() if paused else None
            self.request_redraw()

    @property
    def is_paused(self) -> bool:
        return self._frozen_at is not None

    @property
    def is_still(self) -> bool:
        """Whether a past range is shown, paused or zoomed."""
        return self.is_paused or self.group.zoom is not None

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
        self.on_range()
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

    def wants_redraw(self) -> bool:
        """Whether there is new data, or visible data that moves with time."""
        if super().wants_redraw():
            return True
        return not self.is_still and self.has_data_since(self.now - self.window_s)

    # The cross-line ---------------------------------------------------------------------------

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.point_at(None)

    def point_at(self, seconds: float | None) -> None:
        """Put the cross-line at a time relative to now; None hides it."""
        cursor, is_ours = self.group.cursor, self.group.cursor.source is self
        if seconds == self.view.cursor and is_ours == (seconds is not None):
            return
        if seconds is None:
            cursor.leave(self)
        else:
            cursor.point(self.view.now + seconds, self)
        self._draw_cursor(seconds)
        self.pointed.emit(seconds)

    def _follow_cursor(self) -> None:
        """Another view moved the common cursor."""
        if self.isVisible() and self.group.cursor.source is not self:
            self.move_cursor()

    def move_cursor(self) -> None:
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
            view.has_pointer = self.group.cursor.source is self
            view.readings = () if seconds is None else self.readings_at(view.now + seconds)
            view.viewport().update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right move the cross-line, Escape hides it."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is not None:
            before = self.view.cursor if self.view.cursor is not None else 0.0
            moved = before + step * self.shown_s / 120
            self.point_at(min(max(moved, -self.shown_s), 0.0))
        elif event.key() == Qt.Key.Key_Escape and self.view.cursor is not None:
            self.point_at(None)
        else:
            super().keyPressEvent(event)
