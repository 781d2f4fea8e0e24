"""The strip of marks above a plot: whole texts, none over another, several as a number."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint
from PySide6.QtTest import QTest

from tests.widgets.plot.conftest import NOW
from widgets.plot.mark_strip import Place, lay_out, place_marks
from widgets.plot.marks import MarkLog
from widgets.plot.series import Mark, MarkKind
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import theme

ICON, COUNT = 12.0, 14.0


def placed(lines: list[float], widths: list[float], taken: float = 0.0) -> list[Place]:
    return place_marks(lines, widths, (0, 400), ICON, COUNT, taken)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), max_size=20),
    st.integers(0, 80),
)
def test_nothing_covers_another_or_leaves_the_strip(
    marks: list[tuple[int, int]], taken: int
) -> None:
    lines, widths = [float(x) for x, _ in sorted(marks)], [float(w) for _, w in sorted(marks)]
    found = placed(lines, widths, float(taken))
    assert sorted(i for p in found for i in range(p.first, p.last + 1)) == list(range(len(lines)))
    extents = []
    for place in found:
        width = widths[place.first] if place.num_marks == 1 else COUNT
        left, right = place.left, place.left + ICON
        if place.text_left is not None:
            left, right = min(left, place.text_left), max(right, place.text_left + width)
        extents.append((left, right))
        assert left >= taken and right <= 400
        assert place.left <= max(lines[place.last], taken)
    free = [line for line in lines if line > taken + 40]
    if len(free) == len(lines):
        assert all(a[1] <= b[0] for a, b in pairwise(reversed(extents)))


def test_a_text_is_right_of_its_icon_or_left_of_it() -> None:
    assert placed([100.0], [80.0]) == [Place(0, 0, 94.0, 108.0)]
    assert placed([380.0], [80.0]) == [Place(0, 0, 374.0, 292.0)]
    assert placed([200.0], [390.0]) == [Place(0, 0, 194.0, None)]
    assert placed([100.0, 200.0], [80.0, 80.0])[1].text_left == 108.0
    assert placed([100.0, 180.0], [80.0, 80.0])[1].text_left == 12.0
    assert [p.num_marks for p in placed([100, 110, 120, 300], [80.0] * 4)] == [1, 3]


@pytest.fixture
def marked(chart: TimeChart) -> TimeChart:
    chart.resize(620, 200)
    log = MarkLog(chart)
    chart.share_marks(log)
    log.add(Mark(NOW - 80, "load started", MarkKind.LOAD))
    for number in range(3):
        log.add(Mark(NOW - 30 + number / 4, f"change {number}", details=(f"detail {number}",)))
    chart.redraw()
    return chart


def test_hovering_an_icon_reads_all_of_its_marks(marked: TimeChart) -> None:
    strip = lay_out(marked.view)
    assert [place.num_marks for place in strip.places] == [3, 1]
    place = strip.places[0]
    middle = round(marked.view.strip_height / 2)
    QTest.mouseMove(marked.view.viewport(), QPoint(round(place.left) + 5, middle))
    assert [mark.text for mark in marked.view.pointed_marks] == [f"change {i}" for i in range(3)]
    assert marked.view.cursor == pytest.approx(-29.5)
    assert not marked.grab().toImage().isNull()
    QTest.mouseMove(marked.view.viewport(), QPoint(round(place.left) - 60, middle))
    assert marked.view.pointed_marks == () and marked.view.cursor is None


def test_the_number_above_the_axis_is_short_where_marks_need_the_room(marked: TimeChart) -> None:
    marked.view.above_texts = ("▲3", "▲ 3 above, max 14 s")
    assert lay_out(marked.view).above == "▲ 3 above, max 14 s"
    marked._marks.add(Mark(NOW - 118, "old"))
    marked.redraw()
    marked.view.above_texts = ("▲3", "▲ 3 above, max 14 s")
    assert lay_out(marked.view).above == "▲3"
    number = QPoint(round(marked.view.plot_rect.left()) + 4, 6)
    QTest.mouseMove(marked.view.viewport(), number)
    assert marked.view.viewport().toolTip() == "▲ 3 above, max 14 s"
    QTest.mouseMove(marked.view.viewport(), number + QPoint(60, 60))
    assert marked.view.viewport().toolTip() == ""


def test_marks_that_share_an_icon_share_its_line(chart: TimeChart) -> None:
    chart.resize(620, 200)
    chart.share_marks(MarkLog(chart))
    for at in (-60, -32, -31, -30):
        chart._marks.add(Mark(NOW + at, str(at)))
    chart.redraw()
    view = chart.view
    image, ratio = view.grab().toImage(), view.devicePixelRatioF()
    rows = range(round(view.plot_rect.top()) + 2, round(view.plot_rect.bottom()) - 2)

    def has_line(at: float) -> bool:
        x = round(ratio * round(view.to_x(at)))
        colors = {image.pixelColor(x, round(ratio * y)).name() for y in rows}
        return theme().color("accent").name() in colors

    assert [has_line(at) for at in (-60, -45, -32, -31, -30)] == [True, False, False, False, True]
