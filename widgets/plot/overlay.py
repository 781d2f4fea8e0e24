"""Painting over a time chart: labels, marks, ranges, the cross-line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

from engine.units import number
from widgets.plot.series import EndLabel, Mark, MarkKind, seconds_text
from widgets.theme.theme import SPACE_1, SPACE_2, theme

if TYPE_CHECKING:
    from widgets.plot.plot_view import PlotView


BESIDE = 5.0
"""Pixels between a line and its text, and between lines of text."""


def spread(wanted: Sequence[float], height: float, low: float, high: float) -> list[float]:
    """Centres of labels of `height`, as close to `wanted` as fits between `low` and `high`.

    Labels keep the order of `wanted`. Where there is no room for all of them they are spaced
    evenly, and overlap."""
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    room = max(high - low, 0.0)
    distance = min(height, room / len(wanted))
    half = distance / 2
    placed = [min(max(wanted[i], low + half), high - half) for i in order]
    for i in range(1, len(placed)):  # push down...
        placed[i] = max(placed[i], placed[i - 1] + distance)
    limit = high - half
    for i in range(len(placed) - 1, -1, -1):  # ...and back up from the bottom
        placed[i] = min(placed[i], limit)
        limit = placed[i] - distance
    # A cluster that was pushed down moves up again to lie around its wanted centre.
    placed = _centred(placed, [wanted[i] for i in order], distance, low + half)
    result = [0.0] * len(wanted)
    for place, i in zip(placed, order, strict=True):
        result[i] = place
    return result


def _centred(placed: list[float], wanted: list[float], distance: float, low: float) -> list[float]:
    start = 0
    floor = low
    for end in range(1, len(placed) + 1):
        if end < len(placed) and placed[end] - placed[end - 1] <= distance * (1 + 1e-9):
            continue
        cluster = placed[start:end]
        lift = sum(p - w for p, w in zip(cluster, wanted[start:end], strict=True)) / len(cluster)
        lift = min(max(lift, 0.0), cluster[0] - floor)
        placed[start:end] = [p - lift for p in cluster]
        floor = placed[end - 1] + distance
        start = end
    return placed


class Flag(NamedTuple):
    """Label of a vertical line: its row from the top, and its horizontal extent, which starts or
    ends at the line."""

    row: int
    left: float
    right: float


def flags(
    lines: Sequence[float],
    widths: Sequence[float],
    plot: tuple[float, float],
    num_rows: int,
    least: float,
    taken: float = 0.0,
) -> list[Flag | None]:
    """Positions for the labels of vertical lines, so that none covers another.

    `widths`: preferred widths; `least`: minimum width, below which a label is dropped. `taken`:
    occupied pixels of the first row, from the left. The newest (last) label is placed first: right
    or left of its line, in the first row with room for the whole text, else in the row with the
    most room."""
    rows: list[list[tuple[float, float]]] = [[] for _ in range(num_rows)]
    if taken:
        rows[0].append((plot[0], plot[0] + taken))
    result: list[Flag | None] = [None] * len(lines)
    for i in reversed(range(len(lines))):
        rooms = [
            Flag(number, *side)
            for number, row in enumerate(rows)
            for side in _beside(lines[i], row, plot)
        ]
        if not rooms:
            continue
        room = next((r for r in rooms if r.right - r.left >= widths[i]), None) or max(
            rooms, key=lambda r: r.right - r.left
        )
        width = min(widths[i], room.right - room.left)
        if width < min(least, widths[i]):
            continue
        is_right = room.left > lines[i]
        left = room.left if is_right else room.right - width
        result[i] = flag = Flag(room.row, left, left + width)
        rows[flag.row].append((min(flag.left, lines[i]), max(flag.right, lines[i])))
    return result


def _beside(
    line: float, row: Sequence[tuple[float, float]], plot: tuple[float, float]
) -> list[tuple[float, float]]:
    """Free pixels of a row (left, right) of a line."""
    if any(left - BESIDE < line < right + BESIDE for left, right in row):
        return []
    rights = [left - BESIDE for left, _ in row if left > line]
    lefts = [right + BESIDE for _, right in row if right < line]
    return [
        (line + BESIDE, min([plot[1], *rights])),
        (max([plot[0], *lefts]), line - BESIDE),
    ]


_MARK_ROWS = 3
_LEAST = "Running…"
"""Mark texts with less room than this are hidden."""
_MARK_COLORS = {
    MarkKind.SETTING: "accent",
    MarkKind.LOAD: "text_muted",
    MarkKind.MODEL: "warning",
}
_SPAN_ALPHA = 0.13
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def end_label_rects(view: PlotView) -> list[QRectF]:
    """Rectangles of the newest values in the right margin, without overlap."""
    height = view.label_pen.metrics.height() - 1
    plot = view.plot_rect
    centres = spread(
        [view.to_y(label.y) for label in view.end_labels], height, 0.0, plot.bottom() + height / 2
    )
    left = plot.right() + SPACE_2
    width = view.value_width
    return [QRectF(left, centre - height / 2, width, height) for centre in centres]


def draw_end_labels(painter: QPainter, view: PlotView) -> None:
    if not view.end_labels:
        return
    table, plot, pen = theme(), view.plot_rect, view.label_pen.use(painter)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    for label, rect in zip(view.end_labels, end_label_rects(view), strict=True):
        y, middle = view.to_y(label.y), rect.center().y()
        is_on_axis = view.y_range.low <= label.y <= view.y_range.high
        if abs(y - middle) > 3 and is_on_axis:  # moved away from its line: lead back to it
            painter.setPen(QPen(QColor(table.line_color(label.color)), 1.0))
            painter.drawLine(QLineF(plot.right() + 1, y, rect.left() - 2, middle))
        painter.setPen(QColor(table.label_color(label.color)))
        if is_named(view, label, rect):
            pen.left(painter, rect, label.label)
        pen.right(painter, rect, label.value)


def is_named(view: PlotView, label: EndLabel, rect: QRectF) -> bool:
    """Whether there is room for the name beside the number, which has priority."""
    beside = view.label_pen.width(label.value) + SPACE_1
    return view.has_label_names and view.label_pen.width(label.label) + beside <= rect.width()


def draw_marks(painter: QPainter, view: PlotView) -> None:
    """A dashed line per mark, with its text as a flag at the top, or shown at the cross-line."""
    plot, backdrop = view.plot_rect, theme().color("panel", 0.9)
    shown = [mark for mark in view.marks if -view.window_s <= mark.time - view.now <= 0]
    if not shown:
        return
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    lines = [round(view.to_x(mark.time - view.now)) for mark in shown]
    for mark, x in zip(shown, lines, strict=True):
        painter.setPen(_dashed_pen(_MARK_COLORS[mark.kind]))
        painter.drawLine(QLineF(x, plot.top(), x, plot.bottom()))
    pen, height = view.text_pen.use(painter), view.text_pen.metrics.height()
    places = mark_flags(view, shown, lines)
    for mark, x, place in zip(shown, lines, places, strict=True):
        if place is None:
            continue  # its line is there; the cross-line near it gives the text
        rect = QRectF(place.left, plot.top() + place.row * height, place.right - place.left, height)
        painter.fillRect(rect, backdrop)  # the lines of others stand behind it
        painter.setPen(theme().color(_MARK_COLORS[mark.kind]))
        put = pen.left if place.left > x else pen.right
        # of a change the value at its end says most
        put(painter, rect, pen.elided(mark.text, rect.width(), Qt.TextElideMode.ElideMiddle))
        painter.fillRect(QRectF(x - 1, rect.top(), 2, height), painter.pen().color())


def mark_flags(view: PlotView, marks: Sequence[Mark], lines: Sequence[float]) -> list[Flag | None]:
    """Positions of the mark texts, at lines of these x."""
    plot, pen = view.plot_rect, view.text_pen
    count = _count_above(view)  # stands at the left of the first row, whatever the marks say
    taken = SPACE_1 + view.small_pen.width(count) if count else 0.0
    widths = [pen.width(mark.text) + 1 for mark in marks]  # for what is lost by rounding
    edges = (plot.left(), plot.right())
    return flags(lines, widths, edges, _MARK_ROWS, pen.width(_LEAST), taken)


def marks_near(view: PlotView, seconds: float) -> list[Mark]:
    """Marks within six pixels of a time relative to now."""
    reach = abs(view.to_seconds(6) - view.to_seconds(0))
    return [mark for mark in view.marks if abs(mark.time - view.now - seconds) <= reach]


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
    if not view.y_range.low <= value <= view.y_range.high:
        return
    y = round(view.to_y(value))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(_dashed_pen("limit"))
    painter.drawLine(QLineF(plot.left(), y, plot.right(), y))


def _dashed_pen(color: str) -> QPen:
    pen = QPen(theme().color(color), 1.0)
    pen.setDashPattern([4, 3])
    pen.setCosmetic(True)
    return pen


def draw_count_above(painter: QPainter, view: PlotView) -> None:
    """The number of samples beyond the axis (they are drawn at its upper end)."""
    text = _count_above(view)
    if not text:
        return
    plot = view.plot_rect
    painter.setPen(theme().color("text_muted"))
    place = QRectF(plot.left() + SPACE_1, plot.top(), plot.width(), view.small_pen.metrics.height())
    view.small_pen.use(painter).left(painter, place, text)


def _count_above(view: PlotView) -> str:
    return f"▲ {number(view.num_above, 0)} above" if view.num_above else ""


def draw_cursor(painter: QPainter, view: PlotView, seconds: float) -> None:
    """The cross-line with the exact values beside it, in a box inside the plot."""
    table, plot = theme(), view.plot_rect
    x = round(view.to_x(seconds))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(QPen(table.color("border_strong"), 1.0))
    painter.drawLine(QLineF(x, plot.top(), x, plot.bottom()))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    for reading in view.readings:
        if view.y_range.low <= reading.y <= view.y_range.high:
            point = QPointF(view.to_x(reading.time - view.now), view.to_y(reading.y))
            painter.setPen(QPen(table.color("panel"), 1.0))
            painter.setBrush(QColor(table.line_color(reading.color)))
            painter.drawEllipse(point, 3.5, 3.5)
    _draw_reading_box(painter, view, x, seconds)


def _draw_reading_box(painter: QPainter, view: PlotView, x: float, seconds: float) -> None:
    table, plot = theme(), view.plot_rect
    metrics = view.small_pen.metrics
    time = seconds_text(round(seconds - view.age, 1), 0.1 if view.window_s <= 600 else 1)
    rows = [("", time, "text_muted")]
    rows += [(reading.label, reading.value, reading.color) for reading in view.readings]
    rows += [
        ("", line, _MARK_COLORS[mark.kind])
        for mark in marks_near(view, seconds)
        for line in mark.details or (mark.text,)
    ]
    names = max(metrics.horizontalAdvance(name) for name, _, _ in rows)
    figures = max(metrics.horizontalAdvance(value) for _, value, _ in rows)
    width = names + figures + 4 * SPACE_2
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
