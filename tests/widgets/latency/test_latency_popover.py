"""Breakdown of a reply's latency by mouse and keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import (
    QApplication,
    QDockWidget,
    QMainWindow,
    QPushButton,
    QTableView,
    QWidget,
)
from pytestqt.qtbot import QtBot

from tests.widgets.latency.test_reply_latency import NAMES, Run, prefill, started
from widgets.latency import chart
from widgets.latency.chart import CAUSE_COLORS, NONE, STAGE_COLORS
from widgets.latency.popover import LatencyPopover
from widgets.latency.reply import Cause, Stage
from widgets.latency.view import HINT
from widgets.theme.theme import apply_theme, theme

WINDOW = (900, 700)


@pytest.fixture
def popover(qtbot: QtBot, qapp: QApplication) -> Iterator[LatencyPopover]:
    apply_theme(qapp, "dark")
    window = QWidget()
    window.resize(*WINDOW)
    button = QPushButton("open", window)
    button.move(500, 640)
    qtbot.addWidget(window)
    window.show()
    made = LatencyPopover(window)
    made.view.name = NAMES.__getitem__
    run = started()
    run.step(run.steps[-1].entries[0], prefill("b", 512), seconds=0.1)
    run.decode(4)
    made.show_latency(run.latency(), "this reply")
    made.toggle_at(button)
    yield made  # and the window lives as long


def color_at(popover: LatencyPopover, x: float, y: float) -> str:
    """Of the chart's pixel so far from where its drawing begins."""
    x, y = x + chart._PAD, y + chart._PAD
    return popover.view.chart.grab().toImage().pixelColor(int(x), int(y)).name()


def test_it_opens_at_the_slowest_gap_and_says_why(popover: LatencyPopover) -> None:
    assert popover.isVisible() and popover.view.chart.pointed_index == 9
    assert "512" in popover.view.line.text() and "“Planning”" in popover.view.line.text()
    assert popover.view.line.text() in popover.view.chart.accessibleDescription()
    assert all(figure in popover.first_token.text() for figure in ("13.9 ms", "4 ms"))
    assert popover.view.gaps.text().startswith("14 gaps")
    assert popover.x() >= 0 and popover.geometry().right() <= WINDOW[0]


def test_colours_are_those_of_stages_and_causes(popover: LatencyPopover) -> None:
    view = popover.view.chart
    assert color_at(popover, 3, 5) == theme().value("queued")
    assert color_at(popover, view._room - 20, 5) == theme().value("prefill")
    width = view._bar_width
    bottom = view.height() - 2 * chart._PAD - 3
    assert color_at(popover, 9.4 * width, bottom) == theme().value("prefill")
    assert color_at(popover, 2.4 * width, bottom) == theme().value("decode")
    assert set(STAGE_COLORS) == set(Stage) and set(CAUSE_COLORS) == set(Cause)
    run = started()
    run.decode(seconds=0.1)
    popover.show_latency(run.latency(), "this reply")
    # the bar that is pointed at has its own colour too
    assert view.pointed_index == 9
    assert color_at(popover, 9.4 * view._bar_width, bottom) == theme().value("p99")


def test_every_value_is_in_a_table(qtbot: QtBot, popover: LatencyPopover) -> None:
    qtbot.mouseClick(popover.view.show_table, Qt.MouseButton.LeftButton)
    view = popover.view.chart.findChild(QTableView)
    model = view.model()
    cells = [[str(model.index(row, c).data()) for c in range(model.columnCount())]
             for row in range(model.rowCount())]  # fmt: skip
    assert [row[0] for row in cells].count("gap") == 14
    assert cells[0][:3] == ["queue", "0.00", "4.00"]
    slowest = max(cells, key=lambda row: float(row[2]) if row[0] == "gap" else 0.0)
    assert "prefill" in str(slowest[-1]) and slowest[-2] == "2"
    view.window().close()


def test_the_mouse_and_the_arrow_keys_point_at_gaps(
    qtbot: QtBot, popover: LatencyPopover
) -> None:
    view = popover.view.chart
    qtbot.mouseMove(view, QPoint(int(2.5 * view._bar_width), view.height() - 9))
    qtbot.waitUntil(lambda: view.pointed_index == 2)
    assert "Token 4" in popover.view.line.text()
    qtbot.keyClick(view, Qt.Key.Key_Right)
    assert view.pointed_index == 3
    for key, place in ((Qt.Key.Key_End, 13), (Qt.Key.Key_Right, 13), (Qt.Key.Key_Home, 0),
                       (Qt.Key.Key_Left, 0)):  # fmt: skip
        qtbot.keyClick(view, key)
        assert view.pointed_index == place


def test_a_step_can_be_seen_among_all_others(qtbot: QtBot, popover: LatencyPopover) -> None:
    with qtbot.waitSignal(popover.step_wanted) as asked:
        popover.view.show_step.click()
    assert asked.args == [17]
    assert popover.isHidden()


def test_a_reply_without_gaps_has_nothing_to_point_at(popover: LatencyPopover) -> None:
    run = Run()
    run.step(prefill("me", 5))
    popover.show_latency(run.latency(), "this reply")
    assert popover.view.chart.pointed_index == NONE and popover.view.line.text() == ""
    assert not popover.view.show_step.isEnabled()
    assert popover.view.chart.gap_at(10) == NONE
    popover.view.chart.grab()


def test_without_a_slow_gap_it_says_how_to_point(popover: LatencyPopover) -> None:
    popover.show_latency(started().latency(), "this reply")
    assert popover.view.line.text() == HINT and not popover.view.show_step.isEnabled()


def test_a_chosen_gap_stays_while_its_reply_grows(popover: LatencyPopover) -> None:
    run, chart = started(), popover.view.chart

    def grow(seconds: float) -> None:
        run.decode(seconds=seconds)
        popover.show_latency(run.latency(), "this reply")

    grow(0.05)
    slowest = chart.pointed_index
    grow(0.09)
    assert chart.pointed_index == slowest + 1  # nothing was chosen
    chart.point_at(2)
    grow(0.2)
    assert chart.pointed_index == 2
    popover.show_latency(replace(run.latency(), request_id="other"), "another reply")
    assert chart.pointed_index == slowest + 2


def test_more_gaps_than_pixels_share_bars_and_the_longest_is_seen(
    popover: LatencyPopover,
) -> None:
    run = started()
    run.decode(1500)
    run.decode(seconds=0.3)
    run.decode(700)
    popover.show_latency(run.latency(), "this reply")
    view = popover.view.chart
    assert view._per_bar > 1
    slowest = 9 + 1500
    assert view.pointed_index == slowest
    x = (slowest // view._per_bar + 0.5) * view._bar_width + chart._PAD
    assert view.gap_at(x) == slowest
    assert view.gap_at(view.width() + 50) == NONE


def test_at_a_small_panel_that_floats_it_opens_over_the_window(
    qtbot: QtBot, popover: LatencyPopover
) -> None:
    window = QMainWindow()
    window.resize(*WINDOW)
    dock = QDockWidget("Requests", window)
    panel = QWidget()
    button = QPushButton("Latency", panel)
    dock.setWidget(panel)
    window.addDockWidget(Qt.DockWidgetArea.BottomDockWidgetArea, dock)
    qtbot.addWidget(window)
    window.show()
    dock.setFloating(True)
    dock.setGeometry(100, 500, 300, 120)
    popover.hide()
    popover.toggle_at(button)
    assert popover.parentWidget() is window and popover.isVisible()
    assert window.rect().contains(popover.geometry())
    assert popover.mapToGlobal(popover.rect().bottomLeft()).y() < dock.y()
    popover.hide()
    dock.resize(800, 640)
    popover.toggle_at(button)
    assert popover.parentWidget() is dock and dock.rect().contains(popover.geometry())
