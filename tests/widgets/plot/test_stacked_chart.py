"""Shares that add up, under a limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from PySide6.QtCore import QRectF

from widgets.plot import labels
from widgets.plot.clock import RedrawClock
from widgets.plot.stacked_chart import StackedAreaChart, area
from widgets.theme.theme import theme

NOW = 1000.0


def test_shares_are_stacked_under_the_limit(qtbot, clock: RedrawClock) -> None:
    chart = StackedAreaChart(
        "Memory", "GiB", [area("a", "weights", "weights"), area("b", "other", "other")],
        clock=clock, time_source=lambda: NOW,
    )  # fmt: skip
    qtbot.addWidget(chart)
    chart.resize(420, 240)
    chart.show()
    for at in (NOW - 100, NOW - 50, NOW):
        chart.append_row(at, {"a": 1.0, "b": 0.5})
    chart.set_limit(36.0)
    chart.redraw()
    chart.set_log(True)  # stacked shares add up on a linear axis only
    assert not chart.is_log
    assert "Logarithmic axis" not in {action.text() for action in chart.make_menu().actions()}
    assert chart.view.y_range.high < 3  # far below the limit the axis belongs to the data
    assert [label.value for label in chart.view.end_labels if label.label == "total ↑"] == ["36"]
    chart.set_limit(3.6)
    chart.redraw()
    assert chart.view.y_range.high >= 3.6
    heights = {label.label: label.y for label in chart.view.end_labels}
    assert heights == {"weights": 0.5, "other": 1.25, "total": 3.6}
    assert [r.y for r in chart.readings_at(NOW)] == [1.0, 1.5]  # drawn where the bands end
    assert [r.value for r in chart.readings_at(NOW)] == ["1 GiB", "0.50 GiB"]
    chart.set_available("b", False)  # it has a value all the same
    chart.redraw()
    assert {label.label for label in chart.view.end_labels} == {"weights", "other", "total"}
    chart.append_row(NOW, {"a": 1.0, "b": 0.0})
    chart.redraw()
    assert {label.label for label in chart.view.end_labels} == {"weights", "total"}
    assert [r.label for r in chart.readings_at(NOW)] == ["weights"]
    chart.append_row(NOW, {"a": 1.0, "b": 0.5})
    chart.legend.keys["a"].setChecked(False)
    chart.redraw()
    assert {label.label: label.y for label in chart.view.end_labels}["other"] == 0.25
    assert chart.num_drawn_points()["a"] == 0 < chart.num_drawn_points()["b"]


@pytest.mark.parametrize(("height", "count"), [(140, 3), (400, 5)])
def test_a_low_stack_labels_its_sum_and_the_two_largest_parts(
    qtbot, clock: RedrawClock, height: int, count: int
) -> None:
    names = ("weights", "kv_used", "kv_cached", "kv_reserved", "other", "queued")
    chart = StackedAreaChart(
        "Memory", "GiB", [area(one, one, one, text="{:.2f}".format) for one in names],
        clock=clock, time_source=lambda: NOW,
    )  # fmt: skip
    qtbot.addWidget(chart)
    chart.resize(420, height)
    chart.show()
    parts = dict(zip(names, (2.0, 0.5, 0.001, 0.25, 1.0, 0.125), strict=True))
    for at in (NOW - 50, NOW):
        chart.append_row(at, parts)
    chart.redraw()
    chart.redraw()  # the plot has its size
    heights = {label.label: label.y for label in chart.view.end_labels}
    assert len(heights) == count and "kv_cached" not in heights  # 0.00
    assert {"weights", "other"} < heights.keys() and heights["weights"] == 1.0
    assert heights.get("used", 3.876) == pytest.approx(3.876)
    chart.set_limit(100.0)
    chart.redraw()
    assert len({label.label for label in chart.view.end_labels}) == count + 1


def test_an_hour_of_a_stack_is_drawn_with_few_points(qtbot, clock: RedrawClock) -> None:
    chart = StackedAreaChart(
        "Memory", "GiB", [area("a", "weights", "weights")], clock=clock, time_source=lambda: NOW
    )
    qtbot.addWidget(chart)
    chart.set_window(1200)
    for at in np.linspace(NOW - 3600, NOW, 8000):
        chart.append_row(float(at), {"a": 1.0})
    chart.redraw()
    assert chart.num_drawn_points()["a"] <= 303


def test_the_plate_of_a_label_covers_no_other_label(
    qtbot, clock: RedrawClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = StackedAreaChart(
        "Memory", "GiB", [area("a", "weights", "weights")], clock=clock, time_source=lambda: NOW
    )
    qtbot.addWidget(chart)
    chart.resize(420, 120)
    chart.show()
    chart.append_row(NOW, {"a": 1.0})
    chart.set_limit(36.0)
    chart.redraw()
    view = chart.view
    total = next(label for label in view.end_labels if label.label == "total ↑")
    view.end_labels = [replace(total, label=f"part {i}") for i in range(10)]  # more than fit

    def pixels() -> int:
        image, plot = view.grab().toImage(), view.plot_rect.toRect()
        name = theme().label_color(total.color)
        places = product(range(plot.left(), plot.right()), range(plot.top(), plot.bottom()))
        return sum(image.pixelColor(x, y).name() == name for x, y in places)

    found = pixels()
    monkeypatch.setattr(labels, "_plate", lambda *_: QRectF())
    assert found == pixels() > 20
