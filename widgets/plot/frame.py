"""`FramedPlot`: base class of plots of measured points, with a value axis, an x axis below, titles
of both, a goal, and the reading beside a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from engine.units import number
from widgets.plot.axis import Range, labelled_ticks
from widgets.plot.painted import PaintedPlot, paint_value_axis
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme

_TICKS = 30


class FramedPlot(PaintedPlot):
    """`axes`: titles of x and y. `goal`: of y, or None."""

    value_digits: ClassVar[int] = 6
    """Room for the labels of the value axis."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.axes = ("", "")
        self.goal: float | None = None

    @property
    def x_range(self) -> Range:
        raise NotImplementedError

    @property
    def y_range(self) -> Range:
        raise NotImplementedError

    @property
    def plot_rect(self) -> QRectF:
        line = self.line_height
        left = self.value_digits * self.pen.metrics.horizontalAdvance("0") + SPACE_2
        area = QRectF(self.rect()).adjusted(left, line + SPACE_2, -SPACE_3, -2 * line - SPACE_2)
        return area if area.height() > 1 else QRectF(left, 0, max(area.width(), 1), 1)

    def to_x(self, x: float) -> float:
        return self.plot_rect.left() + self.x_range.share(x) * self.plot_rect.width()

    def to_y(self, y: float) -> float:
        return self.plot_rect.bottom() - self.y_range.share(y) * self.plot_rect.height()

    # Painting -----------------------------------------------------------------------------------

    def paint_frame(self, painter: QPainter, places: Sequence[str] = ()) -> None:
        """places: names of x 0, 1, ..., in place of numbers."""
        plot, shown = self.plot_rect, self.y_range
        marks = labelled_ticks(shown, plot.height(), max(_TICKS, 2 * self.line_height))
        paint_value_axis(painter, plot, shown, marks, self.pen.font)
        self.pen.use(painter)
        self._paint_x_axis(painter, plot, places)
        painter.drawText(QPointF(0, self.pen.metrics.ascent()), self.axes[1])

    def _paint_x_axis(self, painter: QPainter, plot: QRectF, places: Sequence[str]) -> None:
        """Labels that would overlap are left out."""
        metrics, table = self.pen.metrics, theme()
        distance = 2.0 * metrics.horizontalAdvance("00,000")
        ticks = list(enumerate(places)) or labelled_ticks(self.x_range, plot.width(), distance)
        painter.setPen(table.color("axis"))
        painter.drawLine(plot.bottomLeft(), plot.bottomRight())
        painter.setPen(table.color("text_muted"))
        last, edge = -1e9, plot.right() + SPACE_3
        for x, text in ticks:
            width = metrics.horizontalAdvance(text)
            left = min(self.to_x(x) - width / 2, edge - width)
            if left > last + SPACE_2:
                painter.drawText(QPointF(left, plot.bottom() + SPACE_1 + metrics.ascent()), text)
                last = left + width
        width = metrics.horizontalAdvance(self.axes[0])
        bottom = plot.bottom() + SPACE_1 + metrics.ascent() + metrics.height()
        painter.drawText(QPointF(plot.center().x() - width / 2, bottom), self.axes[0])

    def paint_legend(self, painter: QPainter, labels: Sequence[tuple[str, str]]) -> None:
        """labels: (text, theme colour), from right to left."""
        metrics, table, right = self.pen.metrics, theme(), float(self.width() - SPACE_3)
        for text, color in labels:
            right -= metrics.horizontalAdvance(text)
            painter.setPen(table.color("text"))
            painter.drawText(QPointF(right, metrics.ascent()), text)
            right -= SPACE_3
            square = QRectF(right, self.line_height / 2 - 4, 8, 8)
            painter.fillRect(square, table.color(color))
            right -= SPACE_3

    def paint_goal(self, painter: QPainter) -> None:
        if self.goal is None:
            return
        plot, y = self.plot_rect, self.to_y(self.goal)
        painter.setPen(QPen(theme().color("warning"), 1.5, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        text = f"goal {number(self.goal, 0 if self.goal >= 10 else 1)} ms"
        width = self.pen.metrics.horizontalAdvance(text)
        painter.drawText(QPointF(plot.right() - width, y - SPACE_1), text)

    def paint_pointed(
        self, painter: QPainter, at: QPointF, radius: float, lines: Sequence[str]
    ) -> None:
        """A ring around a dot, and its lines on the side with more room."""
        painter.setPen(QPen(theme().color("text"), 1.5))
        painter.drawEllipse(at, radius + 2, radius + 2)
        height = len(lines) * self.line_height + 2 * SPACE_1
        top = min(at.y() - height / 2, self.height() - height - SPACE_2)
        is_left = at.x() < self.plot_rect.center().x()
        corner = QPointF(at.x() + (radius if is_left else -radius), max(0.0, top))
        self.paint_reading(painter, corner, lines, self.width() if is_left else corner.x())

    def paint_reading(
        self, painter: QPainter, at: QPointF, lines: Sequence[str], edge: float
    ) -> None:
        """A box of `lines` to the right of `at`, or to its left where it would pass `edge`."""
        metrics, table = self.pen.metrics, theme()
        width = max(map(metrics.horizontalAdvance, lines)) + 2 * SPACE_2
        box = QRectF(0, 0, width, len(lines) * metrics.height() + 2 * SPACE_1)
        box.moveTopLeft(QPointF(at.x() + SPACE_2, at.y() + SPACE_1))
        if box.right() > edge:
            box.moveRight(at.x() - SPACE_2)
        box.moveLeft(max(box.left(), 0.0))
        painter.fillRect(box, table.color("raised"))
        painter.setPen(table.color("text"))
        for row, text in enumerate(lines):
            y = box.top() + SPACE_1 + row * metrics.height() + metrics.ascent()
            painter.drawText(QPointF(box.left() + SPACE_2, y), text)
