"""Marks that charts share, and stretches of time that are chosen on them."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from tests.widgets.plot.conftest import NOW
from widgets.plot.mark_strip import marks_near
from widgets.plot.marks import MAX_MARKS, MarkLog, Span, SpanLog, SpanPicker
from widgets.plot.series import Mark, MarkKind
from widgets.plot.time_chart import TimeChart


def at(chart: TimeChart, seconds: float) -> QPoint:
    """The point of the plot at a time relative to now."""
    view = chart.view
    return QPoint(round(view.to_x(seconds)), round(view.plot_rect.center().y()))


def drag(chart: TimeChart, begin: float, end: float) -> None:
    place = chart.view.viewport()
    QTest.mousePress(place, Qt.MouseButton.LeftButton, pos=at(chart, begin))
    QTest.mouseMove(place, at(chart, (begin + end) / 2))
    QTest.mouseRelease(place, Qt.MouseButton.LeftButton, pos=at(chart, end))


def test_a_log_is_bounded_and_shared(qtbot: QtBot, chart: TimeChart) -> None:
    log = MarkLog(chart)
    chart.share_marks(log)
    for number in range(2 * MAX_MARKS):
        log.add(Mark(float(number), f"max_num_seqs {number}"))
    assert len(chart.marks) == MAX_MARKS and chart.marks[-1].time == 2 * MAX_MARKS - 1
    assert chart.wants_redraw()
    chart.redraw()
    log.clear()
    assert chart.marks == () and chart.wants_redraw()


def test_trials_make_room_for_other_marks() -> None:
    log = MarkLog()
    log.add(Mark(0.0, "own"))
    for number in range(1, 3 * MAX_MARKS):
        log.add(Mark(float(number), "trial", MarkKind.TRIAL))
    log.add(Mark(3.0 * MAX_MARKS, "back"))
    assert len(log.marks) == MAX_MARKS
    assert [mark.time for mark in log.marks[:2]] == [0, 1]  # where the range of "own" ends
    assert log.marks[-1].text == "back" and log.marks[-2].time == 3 * MAX_MARKS - 1


def test_near_a_mark_the_cross_line_reads_its_details(chart: TimeChart) -> None:
    log = MarkLog(chart)
    chart.share_marks(log)
    log.add(Mark(450.0, "max_num_seqs 8 → 16", details=("Running requests: 8 → 16",)))
    log.add(Mark(480.0, "load ended", MarkKind.LOAD))
    chart.redraw()
    assert [m.details for m in marks_near(chart.view, -50.0)] == [("Running requests: 8 → 16",)]
    chart.point_at(-50.0)
    assert not chart.grab().toImage().isNull()  # the box with the details is painted


def test_a_span_is_painted_where_it_lies(chart: TimeChart) -> None:
    spans = SpanLog(chart)
    chart.share_spans(spans)
    before = chart.grab().toImage()
    spans.show(Span("A", 420.0, 440.0))
    chart.redraw()
    after = chart.grab().toImage()
    corner = chart.view.mapTo(chart, QPoint(0, 0))
    inside = at(chart, -70.0) + corner + QPoint(0, 20)
    outside = at(chart, -20.0) + corner + QPoint(0, 20)
    assert before.pixelColor(inside) != after.pixelColor(inside)
    assert before.pixelColor(outside) == after.pixelColor(outside)


def test_dragging_chooses_a_stretch_in_either_direction(qtbot: QtBot, chart: TimeChart) -> None:
    picked: list[tuple[float, float]] = []
    picker = SpanPicker(chart)
    picker.picked.connect(lambda *span: picked.append(span))
    drag(chart, -60.0, -20.0)
    drag(chart, -20.0, -60.0)
    drag(chart, -30.0, -29.9)  # a click
    assert len(picked) == 2 and picked[0] == pytest.approx(picked[1])
    start, end = picked[0]
    assert start == pytest.approx(440, abs=1) and end == pytest.approx(480, abs=1)
    assert chart.view.picking is None


def test_a_drag_out_of_the_plot_ends_at_its_edge(chart: TimeChart) -> None:
    picked: list[tuple[float, float]] = []
    SpanPicker(chart).picked.connect(lambda *span: picked.append(span))
    drag(chart, -40.0, 400.0)
    assert picked[0][1] == NOW


def test_the_keyboard_chooses_a_stretch(qtbot: QtBot, chart: TimeChart) -> None:
    picked: list[tuple[float, float]] = []
    picker = SpanPicker(chart)
    picker.picked.connect(lambda *span: picked.append(span))
    qtbot.keyClick(chart, Qt.Key.Key_Return)
    assert picker.is_picking and chart.view.cursor == 0.0
    for _ in range(10):
        qtbot.keyClick(chart, Qt.Key.Key_Left)
    assert chart.view.picking is not None and chart.view.picking.seconds == pytest.approx(10)
    qtbot.keyClick(chart, Qt.Key.Key_Return)
    assert picked == [(pytest.approx(490), pytest.approx(500))]
    qtbot.keyClick(chart, Qt.Key.Key_Return)
    qtbot.keyClick(chart, Qt.Key.Key_Escape)
    assert not picker.is_picking and len(picked) == 1
