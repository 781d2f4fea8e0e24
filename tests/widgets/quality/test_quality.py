"""Bars of layers."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPointF, Qt
from pytestqt.qtbot import QtBot

from widgets.quality.bars import NONE, LayerBar, LayerChart

BARS = [LayerBar("0", 0.02, 0.03), LayerBar("1", 0.05, 0.06, "Worst matrix: up 7 %")]


@pytest.fixture
def chart(qtbot: QtBot) -> LayerChart:
    made = LayerChart()
    qtbot.addWidget(made)
    made.resize(400, 200)
    made.show()
    return made


def test_layers_keep_their_place_while_others_come(chart: LayerChart) -> None:
    chart.show_bars(BARS[:1], 4)
    first = next(x for x in range(400) if chart.bar_at(x) == 0)
    chart.show_bars(BARS, 4)
    assert next(x for x in range(400) if chart.bar_at(x) == 0) == first
    assert {chart.bar_at(x) for x in range(400)} == {NONE, 0, 1}
    chart.grab()


def test_the_keyboard_walks_from_layer_to_layer(qtbot: QtBot, chart: LayerChart) -> None:
    chart.show_bars(BARS)
    said: list[int] = []
    chart.pointed.connect(said.append)
    for key in (Qt.Key.Key_End, Qt.Key.Key_Left, Qt.Key.Key_Left, Qt.Key.Key_Right):
        qtbot.keyClick(chart, key)
    assert said == [1, 0, 1]
    assert all(part in chart.text(1) for part in ("5.00 %", "6.00 %", BARS[1].tip))
    assert chart.toolTip() == chart.text(1)
    chart.show_bars(BARS[:1])
    assert chart.pointed_index == NONE


def test_the_mouse_reads_a_bar_and_the_values_can_be_taken(qtbot: QtBot, chart: LayerChart) -> None:
    chart.show_bars(BARS)
    place = QPointF(next(x for x in range(400) if chart.bar_at(x) == 1) + 5, 100)
    qtbot.mouseMove(chart, place.toPoint())
    chart.point_at(chart.bar_at(place.x()))
    assert chart.pointed_index == 1
    lines = chart.values_table().as_csv("\t").splitlines()
    cells = [line.split("\t")[:3] for line in lines[1:]]
    assert cells == [["0", "0.02", "0.03"], ["1", "0.05", "0.06"]]
    assert "2.00 %" in chart.accessibleDescription()


def test_thousands_of_layers_and_none_are_drawn(chart: LayerChart) -> None:
    chart.show_bars([])
    chart.grab()
    chart.show_bars([LayerBar(str(i), i / 3000) for i in range(3000)])
    assert chart.bar_at(399 - 20) > 2000
    chart.grab()
