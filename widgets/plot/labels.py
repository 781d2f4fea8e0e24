"""The newest values, printed at the ends of their lines."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter

from widgets.plot.series import EndLabel
from widgets.theme.theme import SPACE_1, SPACE_2, theme

if TYPE_CHECKING:
    from widgets.plot.plot_view import PlotView

MOST_WIDTH = 0.15
"""Share of a chart's width that the values beside the plot may take."""
LEAST_PLOT = 0.75
"""Share of a chart's width that is left to the plot."""
MARGIN = SPACE_2 + SPACE_1
"""Pixels around the values beside the plot."""
_PAD = 2
"""Pixels left and right of a text over curves."""


class LabelPlace(Enum):
    NAMED = "beside the plot, with names"
    NUMBERS = "beside the plot; the legend has the names"
    INSIDE = "inside the plot, at its right end"


def choose_place(width: float, left: float, name: float, number: float) -> LabelPlace:
    """For a chart `width` pixels wide with an axis of `left` pixels, and texts of these widths."""
    if name + number + MARGIN <= MOST_WIDTH * width:
        return LabelPlace.NAMED
    beside = number + MARGIN
    fits = beside <= MOST_WIDTH * width and left + beside <= (1 - LEAST_PLOT) * width
    return LabelPlace.NUMBERS if fits else LabelPlace.INSIDE


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


def end_label_rects(view: PlotView) -> list[QRectF]:
    """Rectangles of the newest values, without overlap: centred at their lines beside the plot, or
    above them inside it."""
    height, plot = view.label_pen.metrics.height() - 1, view.plot_rect
    wanted = [view.to_y(label.y) for label in view.end_labels]
    if view.label_place is LabelPlace.INSIDE:
        low, bottom = plot.top(), plot.bottom()
        centres = spread([y - height / 2 - 1 for y in wanted], height, low, bottom)
        texts = [_inside_text(view, label) for label in view.end_labels]
        widths = [view.label_pen.width(text) for text in texts]
        lefts = [plot.right() - width - 2 for width in widths]
    else:
        bottom = plot.bottom() + 2  # above the plot, marks have their strip
        low = plot.top() if plot.top() + len(wanted) * height <= bottom else 0.0
        centres = spread(wanted, height, low, bottom)
        lefts = [plot.right() + SPACE_2] * len(wanted)
        widths = [view.value_width] * len(wanted)
    places = zip(lefts, centres, widths, strict=True)
    return [QRectF(left, centre - height / 2, width, height) for left, centre, width in places]


def draw_end_labels(painter: QPainter, view: PlotView) -> None:
    table, plot, pen = theme(), view.plot_rect, view.label_pen.use(painter)
    is_inside = view.label_place is LabelPlace.INSIDE
    over_curves = list[tuple[QRectF, str, QColor]]()
    for label, rect in zip(view.end_labels, end_label_rects(view), strict=True):
        color = QColor(table.label_color(label.color))
        if is_inside:
            over_curves.append((rect, _inside_text(view, label), color))
            continue
        painter.setPen(color)
        pen.right(painter, rect, label.value)
        if is_named(view, label, rect):
            pen.left(painter, rect, label.label)
        elif label.label not in view.legend_names:
            name = rect.translated(plot.right() - 2 - pen.width(label.label) - rect.left(), 0)
            over_curves.append((name, label.label, color))
    for rect, text, _ in over_curves:  # first: where labels are crowded, it would cover the next
        painter.fillRect(_plate(view, rect, text), table.color("panel"))
    for rect, text, color in over_curves:
        painter.setPen(color)
        pen.left(painter, rect, text)


def is_named(view: PlotView, label: EndLabel, rect: QRectF) -> bool:
    """Whether there is room for the name beside the number, which has priority."""
    beside = view.label_pen.width(label.value) + SPACE_1
    is_wide = view.label_place is LabelPlace.NAMED
    return is_wide and view.label_pen.width(label.label) + beside <= rect.width()


def _inside_text(view: PlotView, label: EndLabel) -> str:
    """With its name where the legend does not show it."""
    return label.value if label.label in view.legend_names else f"{label.label} {label.value}"


def _plate(view: PlotView, rect: QRectF, text: str) -> QRectF:
    """Behind a text over curves: an outline around the letters would leave the curve as a line
    below them."""
    plate = QRectF(rect.left(), rect.top(), view.label_pen.width(text), rect.height())
    return plate.adjusted(-_PAD, 0, _PAD, 0)
