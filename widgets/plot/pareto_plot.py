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

from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPen, QPolygonF

from widgets.plot.axis import Range, range_for
from widgets.plot.frame import FramedPlot
from widgets.plot.painted import NONE
from widgets.plot.table import ValuesTable
from widgets.theme.theme import theme

_REACH = 24  # pixels from a dot
_DOT, _BEST = 4.0, 6.0


class Dot(NamedTuple):
    """`lines`: its explanation; the first one is its name."""

    x: float
    y: float
    lines: tuple[str, ...]
    is_front: bool = False
    is_best: bool = False


class ParetoPlot(FramedPlot):
    """`chosen(index)`: a dot was clicked, or Return was pressed on it."""

    chosen = Signal(int)
    empty_text = "Trials appear with the first results."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dots: tuple[Dot, ...] = ()

    def show_dots(
        self, dots: Sequence[Dot], axes: tuple[str, str], goal: float | None = None
    ) -> None:
        """`axes`: titles of x and y; `goal`: of y."""
        self.dots, self.axes, self.goal = tuple(dots), axes, goal
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
        return ValuesTable(("", *self.axes), rows, (0, 2, 2))

    # Geometry -----------------------------------------------------------------------------------

    @property
    def y_range(self) -> Range:
        return range_for(0.0, max([*(dot.y for dot in self.dots), self.goal or 0.0]), None,
                         from_zero=True)  # fmt: skip

    @property
    def x_range(self) -> Range:
        return Range(0.0, 1.08 * max((dot.x for dot in self.dots), default=1.0) or 1.0)

    def place(self, dot: Dot) -> QPointF:
        return QPointF(self.to_x(dot.x), self.to_y(dot.y))

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
        table = theme()
        self.paint_frame(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_goal(painter)
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
            self.paint_pointed(painter, self.place(dot), _BEST, dot.lines)
