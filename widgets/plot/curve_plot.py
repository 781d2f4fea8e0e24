"""`CurvePlot`: curves of measured points over numbers or named places, with a goal to drag.

    ms |                  o p99     the goal is a dashed line: drag it,
       | - - - - - -o- - - - goal   or move it with Up and Down
       | o----o---o     o p50
       +-1----2---4----8-------
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPen

from engine.units import number
from widgets.plot.axis import Range, range_for
from widgets.plot.frame import FramedPlot
from widgets.plot.painted import NONE
from widgets.plot.table import Cell, ValuesTable
from widgets.theme.theme import theme

_GRAB = 6  # pixels from the goal
_DOT = 3.5
_MOST_INTERVAL = 1.4
_STEP = 0.02  # of the goal, by a key


class Curve(NamedTuple):
    """`points`: (x, y, half of the interval of y or None), by x. `is_line`: joined."""

    label: str
    color: str
    points: tuple[tuple[float, float, float | None], ...]
    is_line: bool = True


class CurvePlot(FramedPlot):
    """`goal_moved(y)` while the user moves the goal."""

    goal_moved = Signal(float)
    empty_text = "Curves appear with the first results."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.curves: tuple[Curve, ...] = ()
        self._places: tuple[str, ...] = ()
        self._is_dragging = False

    def show_curves(
        self, curves: Sequence[Curve], axes: tuple[str, str], places: Sequence[str] = (),
        goal: float | None = None,
    ) -> None:  # fmt: skip
        """`axes`: titles of x and y. places: x is an index into these names; else a number."""
        self.curves, self.axes = tuple(c for c in curves if c.points), axes
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
        heads = (self.axes[0], *(curve.label for curve in self.curves))
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
    def x_range(self) -> Range:
        if self._places:
            return Range(-0.5, len(self._places) - 0.5)
        return Range(0.0, 1.05 * max(self._xs, default=1.0) or 1.0)

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
        self.paint_frame(painter, self._places)
        labels = [(curve.label, curve.color) for curve in reversed(self.curves)]
        self.paint_legend(painter, labels)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_goal(painter)
        for curve in self.curves:
            self._paint_curve(painter, curve, theme().color(curve.color))
        if 0 <= self.pointed_index < len(self._xs):
            self._paint_reading(painter, self._xs[self.pointed_index])

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

    def _paint_reading(self, painter: QPainter, x: float) -> None:
        plot, at = self.plot_rect, self.to_x(x)
        painter.setPen(QPen(theme().color("axis"), 1, Qt.PenStyle.DotLine))
        painter.drawLine(QPointF(at, plot.top()), QPointF(at, plot.bottom()))
        lines = [f"{self.axes[0]} {self._place(x)}"]
        for curve in self.curves:
            lines += [f"{curve.label} {number(y, 0 if y >= 100 else 1)}"
                      for px, y, _ in curve.points if px == x]  # fmt: skip
        self.paint_reading(painter, QPointF(at, plot.top()), lines, self.width())
