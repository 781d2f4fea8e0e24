"""The strip above a plot: icons of setting changes, loads and models at their times, and the number
of samples above the axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QLineF, QPointF, QRectF
from PySide6.QtGui import QPainter, QPixmap

from widgets.plot.series import Mark, MarkKind
from widgets.theme.icons import icon_pixmap
from widgets.theme.theme import SPACE_1, theme

if TYPE_CHECKING:
    from widgets.plot.plot_view import PlotView

MARK_COLORS = {
    MarkKind.SETTING: "accent",
    MarkKind.TRIAL: "text_muted",
    MarkKind.LOAD: "text_muted",
    MarkKind.MODEL: "warning",
}
_ICONS = {
    MarkKind.SETTING: "tune",
    MarkKind.TRIAL: "tune",
    MarkKind.LOAD: "play",
    MarkKind.MODEL: "models",
}


class Place(NamedTuple):
    """Marks `first` to `last` share an icon at `left`. `text_left`: None where the text has no
    room."""

    first: int
    last: int
    left: float
    text_left: float | None

    @property
    def num_marks(self) -> int:
        return self.last - self.first + 1


def place_marks(
    lines: Sequence[float],
    widths: Sequence[float],
    edges: tuple[float, float],
    icon: float,
    count_width: float,
    taken: float = 0.0,
) -> list[Place]:
    """Places for marks at `lines` (ascending x), the newest first; none covers another.

    Marks closer than an icon and a count share an icon and show their number. `widths`: of the
    texts, which are shown whole or not at all, right or left of the icon. `taken`: occupied pixels
    at the left edge. `icon`: its width."""
    low, high = edges[0] + taken, edges[1]
    pitch = icon + count_width + 2 * SPACE_1
    groups: list[tuple[int, int]] = []
    last = len(lines) - 1
    while last >= 0:
        first = last
        while first and lines[last] - lines[first - 1] < pitch:
            first -= 1
        groups.append((first, last))
        last = first - 1

    def icon_left(line: float) -> float:
        return max(min(line - icon / 2, high - icon), low)

    result, end = [], high
    for number, (first, last) in enumerate(groups):
        left = icon_left(lines[last])
        width = widths[last] if first == last else count_width
        is_oldest = number + 1 == len(groups)
        begin = low if is_oldest else icon_left(lines[groups[number + 1][1]]) + icon + SPACE_1
        text_left: float | None = None
        if left + icon + 2 + width <= end:
            text_left = left + icon + 2
        elif left - 2 - width >= begin:
            text_left = left - 2 - width
        result.append(Place(first, last, left, text_left))
        end = min(left, left if text_left is None else text_left) - SPACE_1
    return result


class Strip(NamedTuple):
    """What the strip of a view shows: `marks` in the range, their places, and the left text."""

    marks: list[Mark]
    places: list[Place]
    above: str


def lay_out(view: PlotView) -> Strip:
    plot, pen = view.plot_rect, view.text_pen
    marks = [mark for mark in view.marks if -view.window_s <= mark.time - view.now <= 0]
    marks.sort(key=lambda mark: mark.time)
    lines = [view.to_x(mark.time - view.now) for mark in marks]
    short, full = view.above_texts
    taken = view.small_pen.width(short) + SPACE_1 if short else 0.0
    widths = [pen.width(mark.text) for mark in marks]
    edges = (plot.left(), plot.right())
    places = place_marks(lines, widths, edges, view.icon_size, pen.width("00"), taken)
    end = min((min(p.left, p.text_left or p.left) for p in places), default=plot.right())
    fits = plot.left() + view.small_pen.width(full) + SPACE_1 <= end
    return Strip(marks, places, full if fits else short)


def draw_marks(painter: QPainter, view: PlotView) -> None:
    """The strip, and a thin dashed line in the plot for each icon: the changes of a sweep would
    cover the curves with theirs."""
    strip, plot, height, size = lay_out(view), view.plot_rect, view.strip_height, view.icon_size
    table, ratio = theme(), painter.device().devicePixelRatioF()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    if strip.above:
        painter.setPen(table.color("text_muted"))
        place = QRectF(plot.left(), 0, plot.width(), height)
        view.small_pen.use(painter).left(painter, place, strip.above)
    pen = view.text_pen.use(painter)
    for place_ in strip.places:
        newest = strip.marks[place_.last]
        color = MARK_COLORS[newest.kind]
        x = round(view.to_x(newest.time - view.now))
        painter.setPen(view.dashed_pen(color))
        painter.drawLine(QLineF(x, plot.top(), x, plot.bottom()))
        top = QPointF(round(place_.left), round((height - size) / 2))
        painter.drawPixmap(top, _icon(_ICONS[newest.kind], color, size, ratio, table.mode))
        if place_.text_left is not None:
            painter.setPen(table.color(color))
            text = newest.text if place_.num_marks == 1 else str(place_.num_marks)
            pen.left(painter, QRectF(place_.text_left, 0, plot.width(), height), text)


def marks_at(view: PlotView, position: QPointF) -> tuple[Mark, ...]:
    """The marks of the icon or text under the pointer."""
    if position.y() > view.strip_height or not view.marks:
        return ()
    strip, size = lay_out(view), view.icon_size
    for place in strip.places:
        start = end = place.left
        if place.text_left is not None:
            newest = strip.marks[place.last].text
            width = view.text_pen.width(newest if place.num_marks == 1 else str(place.num_marks))
            start, end = min(start, place.text_left), max(end, place.text_left + width - size)
        if start - 2 <= position.x() <= end + size + 2:
            return tuple(strip.marks[place.first : place.last + 1])
    return ()


def tip_at(view: PlotView, position: QPointF) -> str:
    """The whole text on samples above the axis, where only their number has room."""
    is_there = position.y() <= view.strip_height and view.has_strip
    width = view.small_pen.width(lay_out(view).above) if is_there else 0.0
    return view.above_texts[1] if 0 <= position.x() - view.plot_rect.left() <= width else ""


def marks_near(view: PlotView, seconds: float) -> tuple[Mark, ...]:
    """Marks within six pixels of a time relative to now."""
    reach = abs(view.to_seconds(6) - view.to_seconds(0))
    return tuple(mark for mark in view.marks if abs(mark.time - view.now - seconds) <= reach)


@cache
def _icon(name: str, color: str, size: int, ratio: float, mode: str) -> QPixmap:
    return icon_pixmap(name, color, size, ratio)
