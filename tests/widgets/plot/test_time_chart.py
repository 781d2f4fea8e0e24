"""A chart over time: bounded, decimated, exact when read, and right in what it prints."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication, QTableView
from pytestqt.qtbot import QtBot

from tests.widgets.plot.conftest import Drawn
from widgets.plot.axis import Range
from widgets.plot.clock import RedrawClock
from widgets.plot.data import HISTORY_S, MAX_DOTS, MAX_LINE_POINTS
from widgets.plot.header import ChartHeader
from widgets.plot.labels import LabelPlace, end_label_rects, is_named
from widgets.plot.series import Mark, Series, SeriesKind
from widgets.plot.time_chart import TimeChart
from widgets.theme.theme import SPACE_3, apply_theme, load_theme

NOW = 1000.0
SERIES = (
    Series("p50", "p50", "p50"),
    Series("p99", "p99", "p99"),
    Series("dots", "samples", "sample_dot", SeriesKind.DOTS),
    Series("running", "running", "running", SeriesKind.STEPS, hold=True),
)


@pytest.fixture
def chart(qtbot, clock: RedrawClock):
    made = TimeChart(
        "ITL", "ms", SERIES, clock=clock, empty_text="ITL appears with the first reply",
        time_source=lambda: NOW, capacity=5000,
    )  # fmt: skip
    qtbot.addWidget(made)
    made.resize(420, 240)
    made.show()
    return made


def fill(chart: TimeChart, seconds: float = 120.0, every: float = 0.5) -> None:
    times = np.arange(NOW - seconds, NOW + 1e-9, every)
    chart.extend("p50", times, 30 + np.sin(times))
    chart.extend("p99", times, 45 + np.cos(times))
    chart.extend("dots", times, 32 + 5 * np.sin(7 * times))
    chart.extend("running", times, np.floor(times / 10) % 4 + 6)
    chart.redraw()


def color_count(image: QImage, rect: QRectF, name: str) -> int:
    area_ = rect.toRect()
    return sum(
        image.pixelColor(x, y).name() == name
        for x in range(area_.left(), area_.right())
        for y in range(area_.top(), area_.bottom())
    )


def distance(one: QColor, other: QColor) -> float:
    return math.dist(one.getRgb()[:3], other.getRgb()[:3])


def test_history_is_bounded_after_100_000_appends(chart: TimeChart) -> None:
    for i in range(100_000):
        chart.append("p50", NOW - 2000 + i * 0.02, float(i))
    ring = chart.data.history["p50"]
    assert len(ring) <= 5000
    assert ring.times[0] >= ring.times[-1] - HISTORY_S
    chart.extend("dots", np.linspace(0, 5000, 4000), np.ones(4000))
    assert chart.data.history["dots"].times[0] >= 5000 - HISTORY_S


def test_drawing_is_decimated(chart: TimeChart) -> None:
    times = np.linspace(NOW - 119, NOW, 5000)
    noise = np.random.default_rng(0).normal(50, 10, 5000)
    for key in chart.data.series:
        chart.extend(key, times, np.round(noise))
    chart.redraw()
    drawn = chart.num_drawn_points()
    assert 100 < drawn["p50"] <= MAX_LINE_POINTS + 2
    assert 100 < drawn["running"] <= MAX_LINE_POINTS + 2
    assert 100 < drawn["dots"] <= MAX_DOTS + 5


def test_a_gap_is_not_bridged(chart: TimeChart) -> None:
    chart.extend("p50", [NOW - 100, NOW - 90], [1.0, 1.0])
    chart.append("p50", NOW - 80, math.nan)
    chart.extend("p50", [NOW - 30, NOW - 20], [1.0, 1.0])
    chart.redraw()
    assert len(chart.curves.lines["p50"]._runs) == 2


def test_a_line_that_ends_in_a_gap_keeps_its_value(chart: TimeChart) -> None:
    chart.extend("p50", [NOW - 60, NOW - 50, NOW - 40], [20.0, 30.0, math.nan])
    chart.extend("p99", [NOW - 200, NOW - 190], [20.0, math.nan])
    chart.redraw()
    assert [(label.label, label.value) for label in chart.view.end_labels] == [("p50", "30")]


def test_the_axis_starts_at_zero_unless_the_user_says(chart: TimeChart) -> None:
    fill(chart)
    assert chart.view.y_range.low == 0
    chart.legend.keys["running"].setChecked(False)
    chart.set_fit_to_data(True)
    chart.redraw()
    assert 29 >= chart.view.y_range.low > 20


def test_nothing_at_all_is_not_magnified(chart: TimeChart) -> None:
    chart.extend("p50", [NOW - 10, NOW], [0.0, 0.0])
    chart.redraw()
    assert chart.view.y_range == Range(0.0, 1.0)
    assert {text for _, text in chart.view._y_ticks()} <= {f"{i / 10:.1f}" for i in range(11)}


def test_the_newest_value_is_printed_at_the_lines_end(chart: TimeChart) -> None:
    fill(chart)
    labels = {label.label: label for label in chart.view.end_labels}
    assert set(labels) == {"p50", "p99", "running"}
    assert labels["p50"].y == pytest.approx(30 + math.sin(NOW))
    assert labels["p50"].value == f"{30 + math.sin(NOW):.0f}"
    # ...beside the plot and at its line's height
    by_label = dict(zip(labels, end_label_rects(chart.view), strict=True))
    rect = by_label["p50"]
    assert rect.left() >= chart.view.plot_rect.right()
    assert abs(rect.center().y() - chart.view.to_y(labels["p50"].y)) < 2


def test_end_labels_do_not_overlap_and_stay_inside(qtbot, clock: RedrawClock) -> None:
    series = [Series(f"s{i}", f"series {i}", "p50") for i in range(6)]
    chart = TimeChart("Crowd", "", series, clock=clock, time_source=lambda: NOW)
    qtbot.addWidget(chart)
    chart.resize(420, 240)
    chart.show()
    for i, one in enumerate(series):
        chart.extend(one.key, [NOW - 10, NOW], [50.0, 50.0 + 0.01 * i])
    chart.append("s0", NOW, 0.0)
    chart.redraw()
    rects = sorted(end_label_rects(chart.view), key=QRectF.top)
    assert len(rects) == 6
    for upper, lower in itertools.pairwise(rects):
        assert lower.top() >= upper.bottom() - 0.01
    bounds = QRectF(chart.view.rect())
    assert all(bounds.contains(rect) for rect in rects)


def test_the_plot_has_three_quarters_of_a_chart_of_any_width(chart: TimeChart) -> None:
    fill(chart)
    places = set()
    for width in range(260, 1400, 20):
        chart.resize(width, 200)
        view, rects = chart.view, end_label_rects(chart.view)
        places.add(view.label_place)
        beside = view.width() - view.plot_rect.right()
        assert view.plot_rect.width() >= 0.75 * view.width()
        assert beside <= 0.16 * view.width()
        assert max(rect.right() for rect in rects) <= view.width()
        is_named_ = {is_named(view, *pair) for pair in zip(view.end_labels, rects, strict=True)}
        assert is_named_ == {view.label_place is LabelPlace.NAMED}
        if view.label_place is LabelPlace.INSIDE:
            assert max(rect.right() for rect in rects) <= view.plot_rect.right()
        else:
            assert min(rect.left() for rect in rects) >= view.plot_rect.right()
    assert places == set(LabelPlace)


def test_a_wide_number_gets_its_room_and_keeps_it(chart: TimeChart) -> None:
    fill(chart)
    chart.resize(800, 200)
    before = chart.view.plot_rect.right()
    chart.append("p99", NOW, 1_234_567.0)
    chart.redraw()
    rects = end_label_rects(chart.view)
    widest = max(chart.view.label_pen.width(label.value) for label in chart.view.end_labels)
    assert rects[0].width() >= widest - 1 and chart.view.plot_rect.right() < before
    narrow = chart.view.plot_rect.right()
    chart.append("p99", NOW, 3.0)
    chart.redraw()
    assert chart.view.plot_rect.right() == narrow


def test_label_pixels_have_the_series_colour(chart: TimeChart) -> None:
    fill(chart)
    image = chart.view.grab().toImage()
    place = end_label_rects(chart.view)[0]
    assert color_count(image, place, load_theme("light").label_color("p50")) > 5


def test_marks_stay_bounded_and_are_drawn(chart: TimeChart) -> None:
    fill(chart)
    for i in range(100):
        chart._marks.add(Mark(NOW - 60, f"max_num_seqs {i}"))
    assert len(chart.marks) == 64
    chart.redraw()
    image = chart.view.grab().toImage()
    x = round(chart.view.to_x(-60))
    line = QRectF(x, chart.view.plot_rect.top() + 60, 2, 80)
    assert color_count(image, line, load_theme("light").accent) > 20


def test_an_empty_chart_says_what_will_appear(chart: TimeChart) -> None:
    chart.redraw()
    assert chart.view.empty_text == "ITL appears with the first reply"
    text = chart.view.grab().toImage()
    chart.view.set_empty_text("")
    chart.view.repaint()
    bare, muted = chart.view.grab().toImage(), QColor(load_theme("light").text_muted)
    written = 0
    for x, y in itertools.product(range(text.width()), range(text.height())):
        color = text.pixelColor(x, y)
        written += color != bare.pixelColor(x, y) and distance(color, muted) < 100
    assert written > 60  # pixels, of letters that are smoothed: few have the very color
    fill(chart)
    assert chart.view.empty_text == ""
    chart.clear()
    chart.redraw()
    assert chart.view.empty_text


def test_paused_time_stands_still_and_values_are_kept(qtbot, clock: RedrawClock) -> None:
    now = [NOW]
    chart = TimeChart("T", "", SERIES[:1], clock=clock, time_source=lambda: now[0])
    qtbot.addWidget(chart)
    chart.append("p50", NOW - 1, 5.0)
    chart.set_paused(True)
    now[0] += 30
    chart.append("p50", NOW + 29, 9.0)
    chart.redraw()
    assert chart.now == NOW
    assert [label.value for label in chart.view.end_labels] == ["5.0"]
    chart.set_paused(False)
    chart.redraw()
    assert [label.value for label in chart.view.end_labels] == ["9.0"]
    assert chart.view.now == NOW + 30


def test_a_chart_at_rest_is_not_redrawn(qtbot, clock: RedrawClock) -> None:
    now = [NOW]
    chart = TimeChart("T", "", SERIES[:1], clock=clock, time_source=lambda: now[0])
    qtbot.addWidget(chart)
    chart.append("p50", NOW, 5.0)
    chart.redraw()
    assert chart.wants_redraw()  # it moves to the left
    now[0] += 200
    chart.redraw()
    assert not chart.wants_redraw()  # nothing is left in the window


def test_a_hidden_chart_costs_nothing(qtbot, chart: TimeChart, clock: RedrawClock) -> None:
    fill(chart)
    qtbot.waitUntil(lambda: clock.is_running, timeout=2000)
    chart.hide()
    qtbot.waitUntil(lambda: not clock.is_running, timeout=2000)
    chart.append("p50", NOW, 1.0)
    assert not clock.is_running
    chart.show()
    assert clock.is_running


def test_painting_is_on_the_account(qtbot, chart: TimeChart, clock: RedrawClock) -> None:
    fill(chart)
    before = clock.redraw_ms_per_s
    chart.view.viewport().repaint()
    assert clock.redraw_ms_per_s > before


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_chart_follows_the_theme(qapp: QApplication, chart: TimeChart, mode) -> None:
    fill(chart)
    apply_theme(qapp, "dark" if mode == "light" else "light")
    apply_theme(qapp, mode)
    chart.redraw()
    image = chart.view.grab().toImage()
    assert image.pixelColor(1, 1).name() == load_theme(mode).panel
    plot = chart.view.plot_rect.toRect()
    wanted, panel = QColor(load_theme(mode).line_color("p50")), QColor(load_theme(mode).panel)
    near = sum(
        distance(image.pixelColor(x, y), wanted) < 0.4 * distance(panel, wanted)
        for x in range(plot.left(), plot.right())
        for y in range(plot.top(), plot.bottom())
    )
    assert near > 50  # antialiased: hardly a pixel has the very colour


def test_a_note_is_shown_whole_or_not_at_all(chart: TimeChart) -> None:
    chart.set_note("gaps between tokens · last 2 min")
    assert chart.note == "gaps between tokens · last 2 min"
    chart.resize(800, 200)
    assert not chart._header._note.is_cut()
    chart.resize(400, 200)
    assert chart._header._note.is_cut()


def test_the_title_gives_way_last(qtbot: QtBot, chart: TimeChart) -> None:
    header = ChartHeader("Gaps between tokens", SERIES, chart)
    header.set_note("last 2 min")
    title, wide = header._title, header.legend.sizeHint().width()
    header.show()
    header.resize(title.sizeHint().width() + wide // 2 + 4 * SPACE_3, 24)
    qtbot.waitUntil(lambda: header.legend.sizeHint().width() < wide and not title.is_cut())
    header.resize(header.legend.sizeHint().width() + 4 * SPACE_3, 24)
    qtbot.waitUntil(title.is_cut)
    assert title.toolTip() == "Gaps between tokens\nlast 2 min"
    header.set_note("")
    assert title.toolTip() == "Gaps between tokens"


def test_the_legend_gives_way_to_the_title(chart: TimeChart) -> None:
    wide = chart.legend.keys["p50"].sizeHint().width()
    chart.resize(240, 200)
    assert chart.legend.keys["p50"].sizeHint().width() < wide
    assert not chart.legend.names
    chart.resize(600, 200)
    assert chart.legend.keys["p50"].sizeHint().width() == wide
    assert chart.legend.names == {one.label for one in SERIES}


def test_zeros_stay_on_a_logarithmic_axis(chart: TimeChart) -> None:
    chart.extend("p50", [NOW - 20, NOW - 10, NOW], [0.0, 5.0, 400.0])
    chart.set_log(True)
    assert chart.view.y_range.low <= 5
    drawn = Drawn(chart.curves.lines["p50"]).y()
    assert drawn.min() == chart.view.y_range.ends[0] and np.isfinite(drawn).all()
    chart.set_fit_to_data(True)
    assert not chart.is_log
    chart.set_log(True)
    assert not chart.fits_data


def test_a_click_gives_the_focus_and_t_opens_the_table(qtbot, chart: TimeChart) -> None:
    fill(chart)
    chart.activateWindow()
    place = chart.view.plot_rect.center().toPoint()
    qtbot.mouseClick(chart.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert QApplication.focusWidget() is chart
    qtbot.keyClick(chart, Qt.Key.Key_T)
    qtbot.waitUntil(lambda: chart.findChild(QTableView) is not None)
    chart.findChild(QTableView).window().close()
