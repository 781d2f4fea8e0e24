"""Plots of trials and of rungs: what is pointed at, chosen and tabled."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QColor, QMouseEvent
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from widgets.plot.axis import labelled_ticks
from widgets.plot.painted import NONE
from widgets.plot.pareto_plot import Dot, ParetoPlot
from widgets.plot.waterfall import Fall, Waterfall
from widgets.theme.theme import theme

DOTS = (
    Dot(100, 10, ("a",), is_front=True), Dot(200, 40, ("b",), is_front=True, is_best=True),
    Dot(150, 60, ("c",)),
)  # fmt: skip
STEPS = (
    Fall("Naive", 6), Fall("Paged", 12, 6), Fall("Prefix", 4, 12, is_kept=False),
    Fall("INT8", None, note="skipped"),
)  # fmt: skip


def press(widget: QWidget, at: QPointF) -> None:
    button = Qt.MouseButton.LeftButton
    widget.event(QMouseEvent(QEvent.Type.MouseButtonPress, at, widget.mapToGlobal(at), button,
                             button, Qt.KeyboardModifier.NoModifier))  # fmt: skip


def color_at(widget: QWidget, at: QPointF) -> QColor:
    return widget.grab().toImage().pixelColor(at.toPoint())


@pytest.fixture
def pareto(qtbot: QtBot) -> ParetoPlot:
    plot = ParetoPlot("Trials")
    qtbot.addWidget(plot)
    plot.resize(500, 300)
    plot.show_dots(DOTS, ("Output (tok/s)", "ITL (ms)"), 50.0)
    plot.show()
    return plot


@pytest.fixture
def waterfall(qtbot: QtBot) -> Waterfall:
    plot = Waterfall("Rungs")
    qtbot.addWidget(plot)
    plot.resize(500, 300)
    plot.show_steps(STEPS, "Users")
    plot.show()
    return plot


def test_a_dot_is_pointed_at_and_chosen(qtbot: QtBot, pareto: ParetoPlot) -> None:
    for index, dot in enumerate(DOTS):
        assert pareto.item_at(pareto.place(dot)) == index
        with qtbot.waitSignal(pareto.chosen) as found:
            press(pareto, pareto.place(dot))
        assert found.args == [index]
    assert pareto.item_at(QPointF(pareto.to_x(20), pareto.plot_rect.top())) == NONE


def test_a_dot_is_chosen_by_keys(qtbot: QtBot, pareto: ParetoPlot) -> None:
    pareto.setFocus()
    qtbot.keyClick(pareto, Qt.Key.Key_Home)
    qtbot.keyClick(pareto, Qt.Key.Key_Right)
    with qtbot.waitSignal(pareto.chosen) as found:
        qtbot.keyClick(pareto, Qt.Key.Key_Return)
    assert found.args == [1]
    assert pareto.y_range.high >= 60 and pareto.values_table().rows[1] == ("b", 200, 40)


def test_the_front_is_filled_and_other_dots_are_not(pareto: ParetoPlot) -> None:
    found = [color_at(pareto, pareto.place(dot)) for dot in DOTS]
    wanted = [theme().color(name) for name in ("accent", "success", "panel")]
    assert found == wanted


def test_bars_show_what_a_rung_adds_and_takes(waterfall: Waterfall) -> None:
    middle = lambda index, value: QPointF(
        waterfall.room(index).center().x(), waterfall.to_y(value)
    )
    assert color_at(waterfall, middle(0, 3)) == theme().color("accent")
    assert color_at(waterfall, middle(1, 3)) == theme().color("axis")
    assert color_at(waterfall, middle(1, 9)) == theme().color("success")
    assert color_at(waterfall, middle(2, 2)) == theme().color("axis")
    assert waterfall.y_range.high >= 12
    assert waterfall.values_table().rows[3][1] is None


def test_a_rung_is_chosen_by_mouse_and_keys(qtbot: QtBot, waterfall: Waterfall) -> None:
    with qtbot.waitSignal(waterfall.chosen) as found:
        press(waterfall, waterfall.room(2).center())
    assert found.args == [2]
    waterfall.setFocus()
    with qtbot.waitSignal(waterfall.chosen) as found:
        qtbot.keyClick(waterfall, Qt.Key.Key_End)
    assert found.args == [3]


def test_few_users_have_no_ticks_of_a_fraction(waterfall: Waterfall) -> None:
    waterfall.show_steps([Fall("naive", 1.0)], "Users")
    marks = labelled_ticks(waterfall.y_range, waterfall.plot_rect.height(), 30)
    assert len(marks) > 1 and all(value == round(value) for value, _ in marks)


def test_no_axis_is_drawn_before_the_first_value(waterfall: Waterfall) -> None:
    left = int(waterfall.plot_rect.left())

    def seen() -> set[str]:
        image = waterfall.grab().toImage()
        line = int(2 * waterfall.line_height)
        rows = range(line, image.height() - line)
        return {image.pixelColor(x, y).name() for x in range(4, left - 4) for y in rows}

    assert len(seen()) > 1
    waterfall.show_steps([Fall("Naive", None), Fall("Paged", None)], "Users")
    assert len(seen()) == 1
