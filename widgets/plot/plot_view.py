"""The drawing area of a chart: a pyqtgraph view box with axes that cost nothing per redraw.

             | strip: marks, outliers    |
    +--------+---------------------------+-----------+
    |  y     | plot: curves, dots        | newest    |
    |  ticks |                           | values    |
    +--------+---------------------------+-----------+
             | time ticks                |

Grid, ticks and numbers are the view's background, which Qt keeps as a picture until an axis
changes. Time runs from -window to 0 (the right edge), so the time axis never changes while time
passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFont, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QGraphicsView, QWidget

from engine.units import MINUS
from widgets.plot import labels, mark_strip, overlay
from widgets.plot.axis import Range, Unit, labelled_ticks, seconds_text, time_ticks
from widgets.plot.clock import RedrawClock, work_time
from widgets.plot.labels import LabelPlace, choose_place
from widgets.plot.marks import Span
from widgets.plot.painted import paint_centered, paint_value_axis
from widgets.plot.series import EndLabel, Mark, Reading
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, figure_font, theme, ui_font

_TICK_DISTANCE_Y = 30  # pixels, least
_TICK_DISTANCE_X = 64


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
        self.unit = Unit("")
        self.has_strip = False
        self.label_place = LabelPlace.NUMBERS
        self.legend_names: Collection[str] = ()  # those that the legend shows
        self._least_label_widths = self._label_widths = (0.0, 0.0)
        self.value_templates = ("", "0000")  # the longest name and the widest number
        self.end_labels: Sequence[EndLabel] = ()
        self.marks: Sequence[Mark] = ()
        self.spans: Sequence[Span] = ()
        self.picking: Span | None = None  # is being chosen
        self.now = 0.0
        self.above_texts = ("", "")  # of samples beyond the axis, drawn at its end: short and full
        self.pointed_marks: Sequence[Mark] = ()  # of the icon under the pointer
        self.has_pointer = False  # the cross-line is ours, not that of another view
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
        name, value = self._label_widths
        self.label_place = choose_place(self.width(), left, name, value)
        is_inside = self.label_place is LabelPlace.INSIDE
        self.value_width = name + value if self.label_place is LabelPlace.NAMED else value
        right = SPACE_1 if is_inside else self.value_width + labels.MARGIN
        bottom, top = small.height() + SPACE_1, self.strip_height
        width = max(self.width() - left - right, 1.0)
        return QRectF(left, top, width, max(self.height() - bottom - top, 1.0))

    @property
    def strip_height(self) -> float:
        """Pixels above the plot: for marks, or for half of the topmost number."""
        metrics = self.text_pen.metrics
        return float(round(metrics.height() if self.has_strip else metrics.capHeight() / 2) + 2)

    def show_strip(self, shown: bool) -> None:
        if shown != self.has_strip:
            self.has_strip = shown
            self._lay_out()

    @property
    def icon_size(self) -> int:
        return round(0.8 * self.text_pen.metrics.height())

    def to_x(self, seconds: float) -> float:
        """x of a time relative to now."""
        plot = self.plot_rect
        return plot.right() + seconds * plot.width() / self.window_s

    def to_y(self, value: float) -> float:
        """y of a value, limited to the plot."""
        plot = self.plot_rect
        return plot.bottom() - self.y_range.share(value) * plot.height()

    def to_seconds(self, x: float) -> float:
        plot = self.plot_rect
        return (x - plot.right()) * self.window_s / plot.width()

    def set_axes(
        self, window_s: float, y_range: Range, age: float = 0.0, unit: Unit | None = None
    ) -> None:
        """Change the axes; costs nothing if they are unchanged."""
        unit = unit or self.unit
        wanted = (window_s, y_range, age, unit)
        if wanted != (self.window_s, self.y_range, self.age, self.unit):
            self.window_s, self.y_range, self.age, self.unit = wanted
            self._lay_out()

    def apply_theme(self) -> None:
        self.small_pen, self.text_pen = TextPen(figure_font("small")), TextPen(ui_font("small"))
        self.label_pen = TextPen(figure_font("small", QFont.Weight.DemiBold))
        self._lay_out()

    # The newest values ------------------------------------------------------------------------

    @property
    def label_widths(self) -> tuple[float, float]:
        """Pixels for the names of values and for their numbers."""
        name, number = self.value_templates
        advance = self.label_pen.metrics.horizontalAdvance
        return advance(f"{name}  "), advance(number)

    def align_labels(self, least: tuple[float, float]) -> None:
        """Leave at least this room for names and numbers: charts in a column line up."""
        if least != self._least_label_widths:
            self._least_label_widths = least
            self._lay_out()

    def set_end_labels(self, found: Sequence[EndLabel]) -> None:
        """Show these values. The room grows where a number needs more, and stays."""
        self.end_labels = found
        widest = max((self.label_pen.width(label.value) for label in found), default=0.0)
        if widest > self._label_widths[1] + 1:
            self._least_label_widths = (self._least_label_widths[0], widest)
            self._lay_out()

    def _lay_out(self) -> None:
        name, number = self.label_widths
        least = self._least_label_widths
        self._label_widths = max(name, least[0]), max(number, least[1])
        self.plot_rect = self._find_plot_rect()
        self.box.setGeometry(self.plot_rect)
        self.box.setRange(
            xRange=(-self.window_s, 0.0), yRange=self.y_range.ends, padding=0,
            disableAutoRange=False,
        )  # fmt: skip
        self._box_is_stale = True
        self.resetCachedContent()
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        if hasattr(self, "box") and self.box is not None and event is not None:
            self._lay_out()

    @staticmethod
    def dashed_pen(color: str) -> QPen:
        pen = QPen(theme().color(color), 1.0)
        pen.setDashPattern([4, 3])
        pen.setCosmetic(True)
        return pen

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
        height = self.height() - self.small_pen.metrics.height() - self.strip_height
        distance = max(_TICK_DISTANCE_Y, 2 * self.small_pen.metrics.height())
        return labelled_ticks(self.y_range, height, distance, self.unit.factor)

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
        distance = max(_TICK_DISTANCE_X, 1.5 * metrics.horizontalAdvance(f"{MINUS}120 s"))
        most, age = max(int(plot.width() / distance), 1), self.age
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
        mark_strip.draw_marks(painter, self)
        labels.draw_end_labels(painter, self)
        if self.cursor is not None:
            overlay.draw_cursor(painter, self, self.cursor)

    # Pointer ----------------------------------------------------------------------------------
    # pyqtgraph's own handling (dragging, hover events for every item) is not wanted here.

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at, before = event.position(), self.pointed_marks
        self.pointed_marks = mark_strip.marks_at(self, at)
        if self.pointed_marks:
            at.setX(self.to_x(self.pointed_marks[-1].time - self.now))
            at.setY(self.plot_rect.top())
        if before != self.pointed_marks:
            self.viewport().update()
        self.viewport().setToolTip(mark_strip.tip_at(self, at))
        inside = self.plot_rect.adjusted(-1, 0, 1, 0).contains(at)
        self.hovered.emit(self.to_seconds(at.x()) if inside else None)
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
        self.pointed_marks = ()
        self.hovered.emit(None)
