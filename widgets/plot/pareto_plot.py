"""`ParetoPlot`: measured points, of which those that no other beats are joined.

    ms | o        o    hollow: another is as good and better
       |   o    .-*    filled: on the front, joined
       |  ___*-'
       +--------------
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPen, QPolygonF

from engine.units import number
from widgets.plot.axis import Range, labelled_ticks, range_for
from widgets.plot.frame import number_ticks, paint_reading, paint_x_axis
from widgets.plot.painted import NONE, PaintedPlot, paint_value_axis
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme

_REACH = 24  # pixels from a dot
_DOT, _BEST = 4.0, 6.0
_TICKS = 30


class Dot(NamedTuple):
    """`lines`: its explanation; the first one is its name."""

    x: float
    y: float
    lines: tuple[str, ...]
    is_front: bool = False
    is_best: bool = False


class ParetoPlot(PaintedPlot):
    """`chosen(index)`: a dot was clicked, or Return was pressed on it."""

    chosen = Signal(int)
    empty_text = "Run a search to see its trials."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dots: tuple[Dot, ...] = ()
        self.goal: float | None = None
        self._axes = ("", "")

    def show_dots(
        self, dots: Sequence[Dot], axes: tuple[str, str], goal: float | None = None
    ) -> None:
        """`axes`: titles of x and y; `goal`: of y."""
        self.dots, self._axes, self.goal = tuple(dots), axes, goal
        self.pointed_index = min(self.pointed_index, len(self.dots) - 1)
        self.request_redraw()

    @property
    def is_empty(self) -> bool:
        return not self.dots

    @property
    def num_items(self) -> int:
        return len(self.dots)

    def values_table(self) -> ValuesTable:
        rows = tuple((dot.lines[0], dot.x, dot.y) for dot in self.dots)
        return ValuesTable(("", *self._axes), rows, (0, 2, 2))

    # Geometry -----------------------------------------------------------------------------------

    @property
    def y_range(self) -> Range:
        return range_for(0.0, max([*(dot.y for dot in self.dots), self.goal or 0.0]), None,
                         from_zero=True)  # fmt: skip

    @property
    def x_range(self) -> tuple[float, float]:
        return 0.0, 1.08 * max((dot.x for dot in self.dots), default=1.0) or 1.0

    @property
    def plot_rect(self) -> QRectF:
        line = self.line_height
        left = 6 * self.pen.metrics.horizontalAdvance("0") + SPACE_2
        area = QRectF(self.rect()).adjusted(left, line + SPACE_2, -SPACE_3, -2 * line - SPACE_2)
        return area if area.height() > 1 else QRectF(left, 0, max(area.width(), 1), 1)

    def to_x(self, x: float) -> float:
        low, high = self.x_range
        return self.plot_rect.left() + (x - low) / (high - low) * self.plot_rect.width()

    def place(self, dot: Dot) -> QPointF:
        y = self.plot_rect.bottom() - self.y_range.share(dot.y) * self.plot_rect.height()
        return QPointF(self.to_x(dot.x), y)

    def item_at(self, position: QPointF) -> int:
        found = [
            (math.hypot(at.x() - position.x(), at.y() - position.y()), index)
            for index, at in enumerate(map(self.place, self.dots))
        ]
        distance, index = min(found, default=(math.inf, NONE))
        return index if distance <= _REACH else NONE

    # Choosing -----------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() is Qt.MouseButton.LeftButton:
            self._choose(self.item_at(event.position()))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        shape = Qt.CursorShape
        is_over = self.pointed_index != NONE
        self.setCursor(shape.PointingHandCursor if is_over else shape.ArrowCursor)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._choose(self.pointed_index)
        else:
            super().keyPressEvent(event)

    def _choose(self, index: int) -> None:
        if index != NONE:
            self.chosen.emit(index)

    # Painting -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        plot, shown, table = self.plot_rect, self.y_range, theme()
        distance = max(_TICKS, 2 * self.line_height)
        marks = labelled_ticks(shown, plot.height(), distance)
        paint_value_axis(painter, plot, shown, marks, self.pen.font)
        self.pen.use(painter)
        ticks = number_ticks(self.pen, plot, self.x_range)
        paint_x_axis(painter, self.pen, plot, ticks, self.to_x, self._axes[0])
        painter.setPen(table.color("text_muted"))
        painter.drawText(QPointF(0, self.pen.metrics.ascent()), self._axes[1])
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self.goal is not None:
            self._paint_goal(painter, plot, self.goal)
        front = sorted((dot for dot in self.dots if dot.is_front), key=lambda dot: dot.x)
        painter.setPen(QPen(table.color("accent"), 1.5))
        painter.drawPolyline(QPolygonF([self.place(dot) for dot in front]))
        for dot in self.dots:
            color = "success" if dot.is_best else "accent" if dot.is_front else "text_muted"
            painter.setPen(QPen(table.color(color), 1.5))
            painter.setBrush(table.color(color if dot.is_front or dot.is_best else "panel"))
            size = _BEST if dot.is_best else _DOT
            painter.drawEllipse(self.place(dot), size, size)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        if 0 <= self.pointed_index < len(self.dots):
            dot = self.dots[self.pointed_index]
            at = self.place(dot)
            painter.setPen(QPen(table.color("text"), 1.5))
            painter.drawEllipse(at, _BEST + 2, _BEST + 2)
            height = len(dot.lines) * self.line_height + 2 * SPACE_1
            top = min(at.y() - height / 2, self.height() - height - SPACE_2)
            corner = QPointF(at.x() + _BEST, max(0.0, top))
            paint_reading(painter, self.pen, corner, dot.lines, self.width())

    def _paint_goal(self, painter: QPainter, plot: QRectF, goal: float) -> None:
        painter.setPen(QPen(theme().color("warning"), 1.5, Qt.PenStyle.DashLine))
        y = plot.bottom() - self.y_range.share(goal) * plot.height()
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        text = f"goal {number(goal, 0 if goal >= 10 else 1)} ms"
        width = self.pen.metrics.horizontalAdvance(text)
        painter.drawText(QPointF(plot.right() - width, y - SPACE_1), text)
