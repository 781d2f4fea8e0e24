"""`CurvePlot`: curves of measured points over numbers or named places, with a goal to drag.

    ms |                  o p99     the goal is a dashed line: drag it,
       | - - - - - -o- - - - goal   or move it with Up and Down
       | o----o---o     o p50
       +-1----2---4----8-------
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPen

from engine.units import number
from widgets.plot.axis import Range, labelled_ticks, range_for
from widgets.plot.frame import Tick, number_ticks, paint_reading, paint_x_axis
from widgets.plot.painted import NONE, PaintedPlot, paint_value_axis
from widgets.plot.table import Cell, ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme

_GRAB = 6  # pixels from the goal
_DOT = 3.5
_TICKS = 30
_MOST_INTERVAL = 1.4
_STEP = 0.02  # of the goal, by a key


class Curve(NamedTuple):
    """`points`: (x, y, half of the interval of y or None), by x. `is_line`: joined."""

    label: str
    color: str
    points: tuple[tuple[float, float, float | None], ...]
    is_line: bool = True


class CurvePlot(PaintedPlot):
    """`goal_moved(y)` while the user moves the goal."""

    goal_moved = Signal(float)
    empty_text = "Run a sweep to see its curves."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.curves: tuple[Curve, ...] = ()
        self.goal: float | None = None
        self._places: tuple[str, ...] = ()
        self._axes = ("", "")
        self._is_dragging = False

    def show_curves(
        self, curves: Sequence[Curve], axes: tuple[str, str], places: Sequence[str] = (),
        goal: float | None = None,
    ) -> None:  # fmt: skip
        """`axes`: titles of x and y. places: x is an index into these names; else a number."""
        self.curves, self._axes = tuple(c for c in curves if c.points), axes
        self._places, self.goal = tuple(places), goal
        self.pointed_index = min(self.pointed_index, len(self._xs) - 1)
        self.request_redraw()

    @property
    def is_empty(self) -> bool:
        return not self.curves

    @property
    def _xs(self) -> list[float]:
        return sorted({x for curve in self.curves for x, _, _ in curve.points})

    @property
    def num_items(self) -> int:
        return len(self._xs)

    def values_table(self) -> ValuesTable:
        rows: list[tuple[Cell, ...]] = []
        for x in self._xs:
            by_curve = [{p[0]: p[1] for p in curve.points}.get(x) for curve in self.curves]
            rows.append((self._place(x), *by_curve))
        heads = (self._axes[0], *(curve.label for curve in self.curves))
        return ValuesTable(heads, tuple(rows), (0, *[2] * len(self.curves)))

    def _place(self, x: float) -> str:
        return self._places[int(x)] if self._places else number(x, 0 if x >= 100 else 1)

    # Geometry -----------------------------------------------------------------------------------

    @property
    def y_range(self) -> Range:
        """Intervals that are much wider than their values are cut."""
        tops = [min(y + (half or 0.0), _MOST_INTERVAL * y)
                for curve in self.curves for _, y, half in curve.points]  # fmt: skip
        return range_for(0.0, max([*tops, self.goal or 0.0]), None, from_zero=True)

    @property
    def x_range(self) -> tuple[float, float]:
        if self._places:
            return -0.5, len(self._places) - 0.5
        return 0.0, 1.05 * max(self._xs, default=1.0) or 1.0

    @property
    def plot_rect(self) -> QRectF:
        line = self.line_height
        left = 6 * self.pen.metrics.horizontalAdvance("0") + SPACE_2
        area = QRectF(self.rect()).adjusted(left, line + SPACE_2, -SPACE_3, -2 * line - SPACE_2)
        return area if area.height() > 1 else QRectF(left, 0, max(area.width(), 1), 1)

    def to_x(self, x: float) -> float:
        low, high = self.x_range
        return self.plot_rect.left() + (x - low) / (high - low) * self.plot_rect.width()

    def to_y(self, y: float) -> float:
        return self.plot_rect.bottom() - self.y_range.share(y) * self.plot_rect.height()

    def item_at(self, position: QPointF) -> int:
        xs = self._xs
        if not xs:
            return NONE
        return min(range(len(xs)), key=lambda i: abs(self.to_x(xs[i]) - position.x()))

    # The goal -----------------------------------------------------------------------------------

    def _is_at_goal(self, position: QPointF) -> bool:
        return self.goal is not None and abs(self.to_y(self.goal) - position.y()) <= _GRAB

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._is_dragging = self._is_at_goal(event.position())
        super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._is_dragging = False
        super().mouseReleaseEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        shape = Qt.CursorShape
        at_goal = self._is_dragging or self._is_at_goal(event.position())
        self.setCursor(shape.SizeVerCursor if at_goal else shape.ArrowCursor)
        if not self._is_dragging:
            super().mouseMoveEvent(event)
            return
        plot = self.plot_rect
        share = (plot.bottom() - event.position().y()) / plot.height()
        self._move_goal(self.y_range.high * min(max(share, 0.0), 1.0))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        factor = {Qt.Key.Key_Up: 1 + _STEP, Qt.Key.Key_Down: 1 - _STEP}.get(Qt.Key(event.key()))
        if factor is None or self.goal is None:
            super().keyPressEvent(event)
        else:
            self._move_goal(self.goal * factor)

    def _move_goal(self, value: float) -> None:
        self.goal = max(float(f"{value:.3g}"), 0.1)
        self.goal_moved.emit(self.goal)
        self.update()

    # Painting -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        plot, shown, table = self.plot_rect, self.y_range, theme()
        distance = max(_TICKS, 2 * self.line_height)
        marks = labelled_ticks(shown, plot.height(), distance)
        paint_value_axis(painter, plot, shown, marks, self.pen.font)
        self.pen.use(painter)
        self._paint_x(painter, plot)
        painter.setPen(table.color("text_muted"))
        painter.drawText(QPointF(0, self.pen.metrics.ascent()), self._axes[1])
        self._paint_legend(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self.goal is not None:
            pen = QPen(table.color("warning"), 1.5, Qt.PenStyle.DashLine)
            painter.setPen(pen)
            y = self.to_y(self.goal)
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            text = f"goal {number(self.goal, 0 if self.goal >= 10 else 1)} ms"
            width = self.pen.metrics.horizontalAdvance(text)
            painter.drawText(QPointF(plot.right() - width, y - SPACE_1), text)
        for curve in self.curves:
            self._paint_curve(painter, curve, table.color(curve.color))
        if 0 <= self.pointed_index < len(self._xs):
            self._paint_reading(painter, plot, self._xs[self.pointed_index])

    def _paint_x(self, painter: QPainter, plot: QRectF) -> None:
        if self._places:
            ticks: Sequence[Tick] = [(float(i), text) for i, text in enumerate(self._places)]
        else:
            ticks = number_ticks(self.pen, plot, self.x_range)
        paint_x_axis(painter, self.pen, plot, ticks, self.to_x, self._axes[0])

    def _paint_legend(self, painter: QPainter) -> None:
        metrics, table = self.pen.metrics, theme()
        right = float(self.width() - SPACE_3)
        for curve in reversed(self.curves):
            right -= metrics.horizontalAdvance(curve.label)
            painter.setPen(table.color("text"))
            painter.drawText(QPointF(right, metrics.ascent()), curve.label)
            right -= SPACE_3
            painter.fillRect(QRectF(right, self.line_height / 2 - 4, 8, 8),
                             table.color(curve.color))  # fmt: skip
            right -= SPACE_3

    def _paint_curve(self, painter: QPainter, curve: Curve, color: QColor) -> None:
        painter.setPen(QPen(color, 1.5))
        painter.setBrush(color)
        places = [QPointF(self.to_x(x), self.to_y(y)) for x, y, _ in curve.points]
        if curve.is_line:
            painter.drawPolyline(places)
        for place, (_, y, half) in zip(places, curve.points, strict=True):
            if half:
                top = min(y + half, self.y_range.high)
                low, high = self.to_y(max(y - half, 0.0)), self.to_y(top)
                painter.drawLine(QPointF(place.x(), low), QPointF(place.x(), high))
            if len(places) <= 30:
                painter.drawEllipse(place, _DOT, _DOT)
        painter.setBrush(Qt.BrushStyle.NoBrush)

    def _paint_reading(self, painter: QPainter, plot: QRectF, x: float) -> None:
        table = theme()
        at = self.to_x(x)
        painter.setPen(QPen(table.color("axis"), 1, Qt.PenStyle.DotLine))
        painter.drawLine(QPointF(at, plot.top()), QPointF(at, plot.bottom()))
        lines = [f"{self._axes[0]} {self._place(x)}"]
        for curve in self.curves:
            lines += [f"{curve.label} {number(y, 0 if y >= 100 else 1)}"
                      for px, y, _ in curve.points if px == x]  # fmt: skip
        paint_reading(painter, self.pen, QPointF(at, plot.top()), lines, self.width())
