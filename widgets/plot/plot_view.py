"""The drawing area of a chart: a pyqtgraph view box with axes that cost nothing per redraw.

    +--------+---------------------------+-----------+
    |  y     | plot: curves, dots, marks | newest    |
    |  ticks |                           | values    |
    +--------+---------------------------+-----------+
             | time ticks                |

Grid, ticks and numbers are the view's background, which Qt keeps as a picture until an axis
changes. Time runs from -window to 0 (the right edge), so the time axis never changes while time
passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFont, QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QGraphicsView, QWidget

from widgets.plot import overlay
from widgets.plot.clock import RedrawClock, work_time
from widgets.plot.marks import Span
from widgets.plot.painted import paint_centered, paint_value_axis
from widgets.plot.series import (
    EndLabel,
    Mark,
    Range,
    Reading,
    labelled_ticks,
    seconds_text,
    time_ticks,
)
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, figure_font, theme, ui_font

_TICK_DISTANCE_Y = 30  # pixels, least
_TICK_DISTANCE_X = 64
_LEAST_WIDTH_FOR_NAMES = 240
_MARGIN = SPACE_2 + SPACE_1  # around the newest values


class PlotView(pg.GraphicsView):
    """Axes, curves and overlay. `clock` is charged with the cost of painting."""

    hovered = Signal(object)  # seconds relative to now under the pointer, or None

    def __init__(self, clock: RedrawClock | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent, background=None)
        self._clock = clock
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setCacheMode(QGraphicsView.CacheModeFlag.CacheBackground)
        self.setViewportUpdateMode(QGraphicsView.ViewportUpdateMode.FullViewportUpdate)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAntialiasing(True)
        self.setMouseTracking(True)
        self.viewport().setMouseTracking(True)
        self.viewport().setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the chart around it has it
        self.box = pg.ViewBox(enableMouse=False, enableMenu=False, defaultPadding=0)
        self.box.disableAutoRange()
        self.box.setZValue(0)
        self.addItem(self.box)
        self.window_s = 120.0
        self.age = 0.0  # seconds from the right edge to now, where the time axis counts from
        self.y_range = Range(0.0, 1.0)
        self.right_margin = 0.0
        self.value_templates = ("", "0000")  # the longest name and the widest number
        self.end_labels: Sequence[EndLabel] = ()
        self.marks: Sequence[Mark] = ()
        self.spans: Sequence[Span] = ()
        self.picking: Span | None = None  # is being chosen
        self.now = 0.0
        self.num_above = 0  # samples beyond the axis, drawn at its upper end
        self.readings: Sequence[Reading] = ()
        self.cursor: float | None = None  # seconds relative to now
        self.empty_text = ""
        self.limit: float | None = None
        self.apply_theme()

    # Geometry ---------------------------------------------------------------------------------

    def _find_plot_rect(self) -> QRectF:
        """Rectangle of the curves in viewport pixels."""
        small = self.small_pen.metrics
        left = max(small.horizontalAdvance(text) for _, text in self._y_ticks()) + SPACE_2
        left = max(left, 4 * small.horizontalAdvance("0") + SPACE_2)
        right = self.value_width + _MARGIN
        if self.has_label_names:
            right = max(self.right_margin, right)
        bottom = small.height() + SPACE_1
        top = max(SPACE_1, small.capHeight() / 2 + 2)  # half of the topmost number
        width = max(self.width() - left - right, 1.0)
        return QRectF(left, top, width, max(self.height() - bottom - top, 1.0))

    def to_x(self, seconds: float) -> float:
        """x of a time relative to now."""
        plot = self.plot_rect
        return plot.right() + seconds * plot.width() / self.window_s

    def to_y(self, value: float) -> float:
        """y of a value, limited to the plot."""
        plot = self.plot_rect
        share = (value - self.y_range.low) / self.y_range.span
        return plot.bottom() - min(max(share, 0.0), 1.0) * plot.height()

    def to_seconds(self, x: float) -> float:
        plot = self.plot_rect
        return (x - plot.right()) * self.window_s / plot.width()

    def set_axes(self, window_s: float, y_range: Range, age: float = 0.0) -> None:
        """Change the axes; costs nothing if they are unchanged."""
        if (window_s, y_range, age) == (self.window_s, self.y_range, self.age):
            return
        self.window_s, self.y_range, self.age = window_s, y_range, age
        self._lay_out()

    def apply_theme(self) -> None:
        self.small_pen, self.text_pen = TextPen(figure_font("small")), TextPen(ui_font("small"))
        self.label_pen = TextPen(figure_font("small", QFont.Weight.DemiBold))
        self._lay_out()

    @property
    def has_label_names(self) -> bool:
        return self.width() >= _LEAST_WIDTH_FOR_NAMES

    @property
    def full_margin(self) -> float:
        """Pixels that the newest values with their names need to the right of the plot."""
        return self.label_pen.metrics.horizontalAdvance("  ".join(self.value_templates)) + _MARGIN

    def set_right_margin(self, pixels: float) -> None:
        if pixels != self.right_margin:
            self.right_margin = pixels
            self._lay_out()

    def _lay_out(self) -> None:
        name, number = self.value_templates
        text = f"{name}  {number}" if self.has_label_names else number
        self.value_width = self.label_pen.metrics.horizontalAdvance(text)
        self.plot_rect = self._find_plot_rect()
        self.box.setGeometry(self.plot_rect)
        self.box.setRange(
            xRange=(-self.window_s, 0.0), yRange=self.y_range, padding=0, disableAutoRange=False
        )
        self._box_is_stale = True
        self.resetCachedContent()
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        if hasattr(self, "box") and self.box is not None and event is not None:
            self._lay_out()

    # Painting ---------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        start = work_time()
        if self._box_is_stale:  # pyqtgraph would have its scene ask before every paint
            self._box_is_stale = False
            self.scene().prepareForPaint()
        QGraphicsView.paintEvent(self, event)
        if self._clock is not None:
            self._clock.charge(work_time() - start)

    def _y_ticks(self) -> list[tuple[float, str]]:
        height = self.height() - self.small_pen.metrics.height()
        return labelled_ticks(self.y_range, height, _TICK_DISTANCE_Y)

    def set_empty_text(self, text: str) -> None:
        """Text shown in place of axes while there is no data."""
        if text != self.empty_text:
            self.empty_text = text
            self.resetCachedContent()

    def drawBackground(self, painter: QPainter, rect: QRectF) -> None:
        table = theme()
        painter.fillRect(rect, table.color("panel"))
        if self.empty_text:
            return
        plot = self.plot_rect
        paint_value_axis(painter, plot, self.y_range, self._y_ticks(), self.small_pen.font)
        painter.setPen(table.color("axis"))
        painter.drawLine(plot.bottomLeft().toPoint(), plot.bottomRight().toPoint())
        metrics = self.small_pen.metrics
        most, age = max(int(plot.width() / _TICK_DISTANCE_X), 1), self.age
        places, step = time_ticks(-self.window_s - age, -age, most)
        for seconds in places:
            x = round(self.to_x(seconds + age))
            text = seconds_text(seconds, step)
            width = metrics.horizontalAdvance(text)
            painter.setPen(table.color("axis"))
            painter.drawLine(QPointF(x, plot.bottom()), QPointF(x, plot.bottom() + 3))
            painter.setPen(table.color("text_muted"))
            left = min(max(x - width / 2, 0.0), self.width() - width)
            painter.drawText(QPointF(left, plot.bottom() + 3 + metrics.ascent()), text)

    def drawForeground(self, painter: QPainter, rect: QRectF) -> None:
        if self.empty_text:
            above_axis = QRectF(self.rect()).adjusted(0, 0, 0, -SPACE_4)
            paint_centered(painter, above_axis, self.empty_text)
            return
        overlay.draw_spans(painter, self)
        if self.limit is not None:
            overlay.draw_limit(painter, self, self.limit)
        overlay.draw_marks(painter, self)
        overlay.draw_end_labels(painter, self)
        overlay.draw_count_above(painter, self)
        if self.cursor is not None:
            overlay.draw_cursor(painter, self, self.cursor)

    # Pointer ----------------------------------------------------------------------------------
    # pyqtgraph's own handling (dragging, hover events for every item) is not wanted here.

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        inside = self.plot_rect.adjusted(-1, 0, 1, 0).contains(event.position())
        self.hovered.emit(self.to_seconds(event.position().x()) if inside else None)
        event.ignore()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        event.ignore()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        event.ignore()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # scrolls what the chart is in

    def leaveEvent(self, event: object) -> None:
        self.hovered.emit(None)
