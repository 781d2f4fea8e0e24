"""What plots of measured points share: the x axis below them, and the reading beside the mouse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter

from widgets.plot.axis import Range, labelled_ticks
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme

Tick = tuple[float, str]


def number_ticks(pen: TextPen, plot: QRectF, shown: tuple[float, float]) -> Sequence[Tick]:
    distance = 2.0 * pen.metrics.horizontalAdvance("00,000")
    return labelled_ticks(Range(*shown), plot.width(), distance)


def paint_x_axis(
    painter: QPainter, pen: TextPen, plot: QRectF, ticks: Sequence[Tick],
    to_x: Callable[[float], float], title: str,
) -> None:  # fmt: skip
    """Labels that would overlap are left out; `title` is below them."""
    metrics, table = pen.metrics, theme()
    painter.setPen(table.color("axis"))
    painter.drawLine(plot.bottomLeft(), plot.bottomRight())
    painter.setPen(table.color("text_muted"))
    last, edge = -1e9, plot.right() + SPACE_3
    for x, text in ticks:
        width = metrics.horizontalAdvance(text)
        left = min(to_x(x) - width / 2, edge - width)
        if left > last + SPACE_2:
            painter.drawText(QPointF(left, plot.bottom() + SPACE_1 + metrics.ascent()), text)
            last = left + width
    width = metrics.horizontalAdvance(title)
    bottom = plot.bottom() + SPACE_1 + metrics.ascent() + metrics.height()
    painter.drawText(QPointF(plot.center().x() - width / 2, bottom), title)


def paint_reading(
    painter: QPainter, pen: TextPen, at: QPointF, lines: Sequence[str], edge: float
) -> None:
    """A box of `lines` to the right of `at`, or to its left where it would pass `edge`."""
    metrics, table = pen.metrics, theme()
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
