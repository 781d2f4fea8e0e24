"""Painting over a time chart: ranges, the limit, the cross-line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

from widgets.plot.axis import seconds_text
from widgets.plot.mark_strip import MARK_COLORS, marks_near
from widgets.theme.theme import SPACE_1, SPACE_2, theme

if TYPE_CHECKING:
    from widgets.plot.plot_view import PlotView


_MOST_MARK_LINES = 8
_SPAN_ALPHA = 0.13
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def draw_spans(painter: QPainter, view: PlotView) -> None:
    """Selected ranges: a tinted band with its letter at the bottom."""
    plot = view.plot_rect
    for span in (*view.spans, *([view.picking] if view.picking else ())):
        left = max(view.to_x(span.start - view.now), plot.left())
        right = min(view.to_x(span.end - view.now), plot.right())
        if right <= left:
            continue
        band = QRectF(left, plot.top(), right - left, plot.height())
        painter.fillRect(band, theme().color(span.color, _SPAN_ALPHA))
        letter = band.adjusted(SPACE_1, 0, 0, 0)
        letter.setTop(band.bottom() - view.label_pen.metrics.height())
        if letter.width() > view.label_pen.width(span.label):
            painter.setPen(QColor(theme().label_color(span.color)))
            view.label_pen.use(painter).left(painter, letter, span.label)


def draw_limit(painter: QPainter, view: PlotView, value: float) -> None:
    """A dashed line across the plot; its label is among the newest values."""
    plot = view.plot_rect
    if not view.y_range.holds(value):
        return
    y = round(view.to_y(value))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(view.dashed_pen("limit"))
    painter.drawLine(QLineF(plot.left(), y, plot.right(), y))


def draw_cursor(painter: QPainter, view: PlotView, seconds: float) -> None:
    """The cross-line with the exact values beside it, in a box inside the plot."""
    table, plot = theme(), view.plot_rect
    x = round(view.to_x(seconds))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(QPen(table.color("border_strong"), 1.0))
    painter.drawLine(QLineF(x, plot.top(), x, plot.bottom()))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    for reading in view.readings:
        if view.y_range.holds(reading.y):
            point = QPointF(view.to_x(reading.time - view.now), view.to_y(reading.y))
            painter.setPen(QPen(table.color("panel"), 1.0))
            painter.setBrush(QColor(table.line_color(reading.color)))
            painter.drawEllipse(point, 3.5, 3.5)
    _draw_reading_box(painter, view, x, seconds)


def _mark_lines(view: PlotView, seconds: float) -> list[tuple[str, str]]:
    """Details of the marks under the pointer, the newest first, with their colours."""
    marks = view.pointed_marks or marks_near(view, seconds)
    lines = [
        (line, MARK_COLORS[mark.kind])
        for mark in reversed(marks)
        for line in mark.details or (mark.text,)
    ]
    return lines[:_MOST_MARK_LINES]


def _draw_reading_box(painter: QPainter, view: PlotView, x: float, seconds: float) -> None:
    table, plot = theme(), view.plot_rect
    metrics = view.small_pen.metrics
    rows = [(reading.label, reading.value, reading.color) for reading in view.readings]
    if view.has_pointer:  # once in a group of charts
        time = seconds_text(round(seconds - view.age, 1), 0.1 if view.window_s <= 600 else 1)
        rows.insert(0, ("", time, "text_muted"))
        room = 0.8 * plot.width()
        rows += [
            ("", metrics.elidedText(line, Qt.TextElideMode.ElideMiddle, room), color)
            for line, color in _mark_lines(view, seconds)
        ]
    if not rows:
        return
    advance, named = metrics.horizontalAdvance, [row for row in rows if row[0]]
    names = max((advance(name) for name, _, _ in named), default=0.0)
    figures = max((advance(value) for _, value, _ in named), default=0.0)
    alone = max((advance(text) for name, text, _ in rows if not name), default=0.0)
    width = max(names + figures + 2 * SPACE_2, alone) + 2 * SPACE_2
    height = len(rows) * metrics.height() + SPACE_2
    left = x + SPACE_2 if x + SPACE_2 + width <= plot.right() else x - SPACE_2 - width
    left = max(left, 0.0)
    box = QRectF(left, plot.top(), width, height)
    painter.setPen(QPen(table.color("border_strong"), 1.0))
    painter.setBrush(table.color("raised"))  # labels of marks may lie below it
    painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
    painter.setFont(view.small_pen.font)
    top = box.top() + SPACE_1
    for name, value, color in rows:
        line = QRectF(box.left() + SPACE_2, top, width - 2 * SPACE_2, metrics.height())
        painter.setPen(QColor(table.label_color(color, "raised")))
        painter.drawText(line, _LEFT, name)
        if name:
            painter.setPen(table.color("text"))
        painter.drawText(line, _RIGHT, value)
        top += metrics.height()
