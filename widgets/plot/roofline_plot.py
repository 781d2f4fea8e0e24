"""`RooflinePlot`: operations per byte against operations per second, below the machine's roofs.

    GFLOP/s |        ____compute____
            |      ./   o             o: an operation, as large as its share of the time
            |  o ./
            +----memory--- FLOP per byte

Williams et al., "Roofline", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from engine.units import bandwidth_text, compute_text
from widgets.plot.axis import Range
from widgets.plot.frame import FramedPlot
from widgets.plot.painted import NONE
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, theme

_LEAST_DOT, _DOT = 3.0, 18.0  # pixels: the radius of a share of 0, and of 1 beside it
_REACH = 8  # pixels from a dot
_ROOF = 4  # times the ridge
_GIGA = 1e9
_COLORS = {False: "accent", True: "warning"}
_BOUNDS = {True: "compute-bound", False: "memory-bound"}
AXES = "FLOP per byte", "GFLOP/s"


class RoofDot(NamedTuple):
    """An operation. `share`: of the time. `lines`: its explanation; the first one is its name."""

    flops_per_byte: float
    flops_per_s: float
    share: float
    is_compute_bound: bool
    lines: tuple[str, ...]


class RooflinePlot(FramedPlot):
    value_digits = 7
    empty_text = "Profile steps to see their operations."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dots: tuple[RoofDot, ...] = ()
        self.bytes_per_s = self.flops_per_s = 1.0
        self.axes = AXES

    def show_dots(self, dots: Sequence[RoofDot], bytes_per_s: float, flops_per_s: float) -> None:
        """Below the roofs of memory and of compute. A dot without operations has no place."""
        found = (dot for dot in dots if dot.flops_per_byte > 0 and dot.flops_per_s > 0)
        self.dots = tuple(sorted(found, key=lambda dot: -dot.share))  # the small ones on top
        self.bytes_per_s, self.flops_per_s = bytes_per_s, flops_per_s
        self.pointed_index = min(self.pointed_index, len(self.dots) - 1)
        self.request_redraw()

    @property
    def is_empty(self) -> bool:
        return not self.dots

    @property
    def num_items(self) -> int:
        return len(self.dots)

    def values_table(self) -> ValuesTable:
        rows = tuple(
            (dot.lines[0], dot.flops_per_byte, dot.flops_per_s / _GIGA, 100 * dot.share)
            for dot in self.dots
        )
        return ValuesTable(("Operation", *AXES, "share in %"), rows, (0, 3, 3, 1))

    # Geometry -----------------------------------------------------------------------------------

    @property
    def ridge(self) -> float:
        """Operations per byte where the roofs meet."""
        return self.flops_per_s / self.bytes_per_s

    @property
    def x_range(self) -> Range:
        # some of the compute roof is always seen
        return _decades(
            [_ROOF * self.ridge, self.ridge, *(dot.flops_per_byte for dot in self.dots)]
        )

    @property
    def y_range(self) -> Range:
        """Of GFLOP/s."""
        rates = [self.flops_per_s, *(dot.flops_per_s for dot in self.dots)]
        return _decades([rate / _GIGA for rate in rates])

    def place(self, dot: RoofDot) -> QPointF:
        return QPointF(self.to_x(dot.flops_per_byte), self.to_y(dot.flops_per_s / _GIGA))

    def item_at(self, position: QPointF) -> int:
        found = []
        for index, dot in enumerate(self.dots):
            at = self.place(dot)
            away = math.hypot(at.x() - position.x(), at.y() - position.y()) - _radius(dot)
            found.append((away, -index))
        distance, index = min(found, default=(math.inf, NONE))
        return -index if distance <= _REACH else NONE

    # Painting -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        plot = self.plot_rect
        self.paint_frame(painter)
        roofs = {True: compute_text(self.flops_per_s), False: bandwidth_text(self.bytes_per_s)}
        self.paint_legend(painter, [
            (f"{text}: up to {roofs[bound]}", _COLORS[bound]) for bound, text in _BOUNDS.items()
        ])  # fmt: skip
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_roofs(painter, plot)
        self._paint_dots(painter, plot)
        if 0 <= self.pointed_index < len(self.dots):
            dot = self.dots[self.pointed_index]
            self.paint_pointed(painter, self.place(dot), _radius(dot), dot.lines)

    def _paint_roofs(self, painter: QPainter, plot: QRectF) -> None:
        """The memory roof from where it enters."""
        low = max(self.x_range.low, self.y_range.low * _GIGA / self.bytes_per_s)
        ridge, top = self.to_x(self.ridge), self.to_y(self.flops_per_s / _GIGA)
        start = QPointF(self.to_x(low), self.to_y(low * self.bytes_per_s / _GIGA))
        painter.setPen(QPen(theme().color("text_muted"), 1.5))
        painter.drawPolyline([start, QPointF(ridge, top), QPointF(plot.right(), top)])

    def _paint_dots(self, painter: QPainter, plot: QRectF) -> None:
        table = theme()
        taken: list[QRectF] = []  # by dots and names
        for dot in self.dots:
            at, radius = self.place(dot), _radius(dot)
            color = table.color(_COLORS[dot.is_compute_bound])
            painter.setPen(QPen(color, 1.5))
            color.setAlphaF(0.35)
            painter.setBrush(color)
            painter.drawEllipse(at, radius, radius)
            taken.append(QRectF(at.x() - radius, at.y() - radius, 2 * radius, 2 * radius))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(table.color("text"))
        metrics = self.pen.metrics
        for dot in self.dots:  # the largest first: names that would overlap are left out
            at, name = self.place(dot), dot.lines[0]
            width = metrics.horizontalAdvance(name)
            box = QRectF(0, 0, width, metrics.height())
            box.moveCenter(at)
            box.moveLeft(at.x() + _radius(dot) + SPACE_1)
            if box.right() > plot.right():
                box.moveRight(at.x() - _radius(dot) - SPACE_1)
            if not any(box.intersects(other) for other in taken):
                taken.append(box)
                painter.drawText(QPointF(box.left(), box.top() + metrics.ascent()), name)


def _radius(dot: RoofDot) -> float:
    return _LEAST_DOT + _DOT * math.sqrt(dot.share)  # the area is the time


def _decades(values: Sequence[float]) -> Range:
    """Whole decades around the values."""
    low, high = math.log10(min(values)), math.log10(max(values))
    return Range(10.0 ** math.floor(low), 10.0 ** (math.floor(high) + 1), is_log=True)
