"""Charts of a group point at one time and zoom together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.plot.axis import time_ticks
from widgets.plot.clock import RedrawClock
from widgets.plot.link import LEAST_ZOOM_S, ChartGroup, LinkedCursor
from widgets.plot.marks import SpanPicker
from widgets.plot.series import Series
from widgets.plot.time_chart import TimeChart

NOW = 500.0


@pytest.fixture
def pair(qtbot: QtBot) -> Iterator[tuple[TimeChart, TimeChart]]:
    """Two charts of a group; only the first has values before NOW - 60."""
    clock, group = RedrawClock(), ChartGroup()
    made = []
    for title, first in (("ITL", 0.0), ("Rate", NOW - 60)):
        chart = TimeChart(
            title, "", (Series("p50", "p50", "p50"),), clock=clock, time_source=lambda: NOW
        )
        qtbot.addWidget(chart)
        chart.join(group)
        chart.resize(420, 200)
        times = np.arange(first, NOW + 0.1, 0.5)
        chart.extend("p50", times, times % 7)
        chart.show()
        chart.redraw()
        made.append(chart)
    group.setParent(made[0])
    clock.setParent(made[0])
    yield made[0], made[1]
    clock._timer.stop()
    clock._beat.stop()


def at(chart: TimeChart, seconds: float) -> QPoint:
    view = chart.view
    return QPoint(round(view.to_x(seconds)), round(view.plot_rect.center().y()))


def drag(chart: TimeChart, begin: float, end: float, modifier: Qt.KeyboardModifier) -> None:
    place, button = chart.view.viewport(), Qt.MouseButton.LeftButton
    QTest.mousePress(place, button, modifier, at(chart, begin))
    QTest.mouseMove(place, at(chart, (begin + end) / 2))
    QTest.mouseRelease(place, button, modifier, at(chart, end))


CTRL, PLAIN = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.NoModifier


def test_the_cross_line_of_one_is_read_in_all(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    one.point_at(-30.0)
    assert one.group.cursor.time == NOW - 30 and other.view.cursor == -30.0
    assert other.view.readings == other.readings_at(NOW - 30)
    other.point_at(-10.0)  # the pointer moved on before the first chart heard of it
    one.point_at(None)
    assert one.group.cursor.time == NOW - 10
    other.point_at(None)
    assert one.view.cursor is None and other.view.cursor is None


def test_another_view_may_join(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    one.group.cursor.point(NOW - 20, "a timeline")
    assert one.view.cursor == other.view.cursor == -20.0
    one.group.cursor.point(NOW - 2000, "a timeline")
    assert one.view.cursor is None
    one.group.cursor.point(NOW - 20, "a timeline")
    one.group.cursor.leave(object())
    assert one.view.cursor == -20.0
    one.group.cursor.leave("a timeline")
    assert one.view.cursor is None


def test_a_followed_time_stays_and_a_pointer_stays(qtbot: QtBot) -> None:
    now, group = [NOW], ChartGroup()
    charts = []
    for _ in range(2):
        chart = TimeChart(
            "T", "", (Series("p50", "p50", "p50"),), clock=RedrawClock(),
            time_source=lambda: now[0],
        )  # fmt: skip
        qtbot.addWidget(chart)
        chart.join(group)
        chart.show()
        charts.append(chart)
        chart.extend("p50", [NOW - 60, NOW], [1.0, 2.0])
        chart.redraw()
    charts[0].point_at(-5.0)
    now[0] += 3
    for chart in charts:
        chart.redraw()
    assert group.cursor.time == NOW - 2
    assert [chart.view.cursor for chart in charts] == [-5.0, -5.0]
    group.cursor.point(NOW - 2, "a timeline")
    now[0] += 3
    for chart in charts:
        chart.redraw()
    assert [chart.view.cursor for chart in charts] == [-8.0, -8.0]


def test_a_brush_zooms_every_chart_and_a_double_click_returns(
    pair: tuple[TimeChart, TimeChart],
) -> None:
    one, other = pair
    ranges: list[tuple[float, float]] = []
    SpanPicker(one).picked.connect(lambda *span: ranges.append(span))
    drag(one, -40.0, -20.0, CTRL)
    for chart in pair:
        assert chart.shown_s == pytest.approx(20, abs=1)
        assert chart.now == pytest.approx(NOW - 20, abs=1)
        assert chart.view.age == pytest.approx(20, abs=1)
        assert chart.note and not chart.wants_redraw()
    assert not ranges  # a plain drag chooses a range
    drag(one, -15.0, -5.0, PLAIN)
    assert len(ranges) == 1 and one.shown_s == pytest.approx(20, abs=1)
    QTest.mouseDClick(other.view.viewport(), Qt.MouseButton.LeftButton, pos=at(other, -10))
    for chart in pair:
        assert (chart.shown_s, chart.now, chart.view.age, chart.note) == (120.0, NOW, 0.0, "")


def test_the_keyboard_zooms(qtbot: QtBot, pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    for keys in ([Qt.Key.Key_Z], [Qt.Key.Key_Left] * 10, [Qt.Key.Key_Z]):
        for key in keys:
            qtbot.keyClick(one, key)
    assert other.shown_s == pytest.approx(10) and other.now == NOW
    qtbot.keyClick(other, Qt.Key.Key_Escape)
    assert one.shown_s == 120.0


def wheel(chart: TimeChart, seconds: float, turn: int, modifier: Qt.KeyboardModifier) -> bool:
    place = QPointF(chart.view.mapTo(chart, at(chart, seconds)))
    event = QWheelEvent(
        place, chart.mapToGlobal(place), QPoint(), QPoint(0, turn), Qt.MouseButton.NoButton,
        modifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(chart, event)
    return event.isAccepted()


def test_ctrl_and_the_wheel_zoom_around_the_pointer(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    assert not wheel(one, -60, 120, PLAIN) and one.group.zoom is None
    under = one.now + one.view.to_seconds(at(one, -60).x())
    assert wheel(one, -60, 120, CTRL)
    assert one.shown_s == pytest.approx(80)
    assert one.now + one.view.to_seconds(at(one, -40).x()) == pytest.approx(under, abs=1)
    assert other.group.zoom == one.group.zoom
    assert wheel(one, -40, -120, CTRL) and one.group.zoom is None


def test_a_new_time_range_and_new_data_leave_the_zoom(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    one.group.zoom_to(NOW - 20, NOW - 10, NOW)
    other.set_window(60.0)
    assert one.group.zoom is None
    one.group.zoom_to(NOW - 20, NOW - 10, NOW)
    one.clear()
    assert other.group.zoom is None


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_zoom_keeps_a_least_length(start: float, length: float) -> None:
    group = ChartGroup()
    group.zoom_to(start, start + length, 300.0)
    assert group.zoom is not None and group.zoom.seconds >= max(length, LEAST_ZOOM_S) - 1e-9
    assert (group.zoom.start + group.zoom.end) / 2 == pytest.approx(start + length / 2)
    group.zoom_to(start, start + length, 400.0)
    assert group.zoom.now == 300.0


@given(st.floats(-1000, 0), st.floats(0.2, 1200), st.integers(1, 10))
def test_time_ticks_lie_inside(low: float, length: float, most: int) -> None:
    found, step = time_ticks(low, low + length, most)
    assert len(found) <= max(most + 1, 2) and step > 0
    assert all(low - 1e-3 <= tick <= low + length + 1e-3 for tick in found)


def test_a_line_reaches_the_right_edge_of_a_past_range(pair: tuple[TimeChart, TimeChart]) -> None:
    x, _ = pair[0].data.line_points("p50", NOW - 20.2, 10.0)
    assert x[0] <= -10 and x[-1] >= 0


def test_a_cursor_tells_only_changes() -> None:
    cursor, told = LinkedCursor(), []
    cursor.changed.connect(lambda: told.append(cursor.time))
    for _ in range(2):
        cursor.point(1.0, "view")
    cursor.leave("view")
    cursor.leave("view")
    assert told == [1.0, None]


def test_leaving_the_plot_leaves_the_cursor(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    QTest.mouseMove(one.view.viewport(), at(one, -50))
    assert other.view.cursor == pytest.approx(-50, abs=1)
    QApplication.sendEvent(one.view, QEvent(QEvent.Type.Leave))
    assert other.view.cursor is None


def test_one_file_has_the_values_of_all_charts(pair: tuple[TimeChart, TimeChart]) -> None:
    one, other = pair
    texts = [action.text() for action in one.make_menu().actions()]
    assert "Save all charts as CSV…" in texts
    table = one.group.values_table()
    assert table.headers == ("time (s)", "ITL: p50", "Rate: p50")
    assert len(table.rows) == len(one.data.history["p50"])
    assert sum(row[2] is not None for row in table.rows) == len(other.data.history["p50"])
    one.group.zoom_to(NOW - 20, NOW - 10, NOW)
    zoomed = one.group.values_table()
    assert [row[0] for row in zoomed.rows] == list(np.arange(-20, -9.9, 0.5))
    assert [row[1] for row in one.values_table().rows] == [row[1] for row in zoomed.rows]
