"""Latency over time: percentiles of the samples, outliers and units."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import Qt

from engine.snapshot import Sample
from tests.figures import numbers
from tests.widgets.plot.conftest import Drawn
from tests.widgets.synthetic import snapshot
from widgets.live.metric_store import MetricStore
from widgets.live.store_charts import LatencyChart
from widgets.plot.clock import RedrawClock

NOW = 1000.0


def take(chart: LatencyChart, samples: list[Sample]) -> None:
    chart.store.update(snapshot(NOW, ttft=tuple(samples)))
    chart.add_samples(samples)


def latency_chart(title: str, clock: RedrawClock) -> LatencyChart:
    return LatencyChart(
        title, store=MetricStore(), key="ttft", clock=clock, time_source=lambda: NOW
    )


def test_latency_lines_are_percentiles_of_the_samples(qtbot, clock: RedrawClock) -> None:
    chart = latency_chart("ITL", clock)
    qtbot.addWidget(chart)
    values = np.random.default_rng(0).gamma(4, 0.008, 1000)
    times = np.linspace(NOW - 9.99, NOW, 1000)
    take(chart, [Sample(t, v) for t, v in zip(times, values, strict=True)])
    chart.redraw()
    p50 = chart.data.history["p50"].last()
    assert p50 == (NOW, pytest.approx(np.median(values) * 1e3))
    assert chart.data.history["p99"].last()[1] == pytest.approx(np.percentile(values, 99) * 1e3)
    assert [label.label for label in chart.view.end_labels] == ["p50", "p99"]


def test_few_samples_have_a_max_instead_of_a_p99(qtbot, clock: RedrawClock) -> None:
    chart = latency_chart("TTFT", clock)
    qtbot.addWidget(chart)
    take(chart, [Sample(NOW - 3, 0.080), Sample(NOW - 2, 0.120)])
    chart.redraw()
    labels = {label.label: label.value for label in chart.view.end_labels}
    assert labels == {"p50": "100", "max of 2": "120"}


def test_a_single_sample_is_no_max(qtbot, clock: RedrawClock) -> None:
    chart = latency_chart("TTFT", clock)
    qtbot.addWidget(chart)
    take(chart, [Sample(NOW - 3, 0.080)])
    chart.redraw()
    labels = {label.label: label.value for label in chart.view.end_labels}
    assert labels == {"p50": "80", "1 sample": "80"}


def test_a_max_says_of_how_many_samples_where_older_ones_are_higher(
    qtbot, clock: RedrawClock
) -> None:
    chart = latency_chart("TTFT", clock)
    qtbot.addWidget(chart)
    take(chart, [Sample(NOW - 70, 10.0), Sample(NOW - 3, 0.5), Sample(NOW - 2, 0.998)])
    chart.redraw()
    assert chart.data.above(NOW, chart.shown_s, 9_000.0).tolist() == [10_000.0]  # still a dot
    named = {label.label: label.y for label in chart.view.end_labels}
    assert named["max of 2"] == pytest.approx(998)


@pytest.fixture
def itl(qtbot, clock: RedrawClock) -> LatencyChart:
    """1,000 gaps of 30 ms, and three of 5, 9 and 14 s."""
    made = latency_chart("ITL", clock)
    qtbot.addWidget(made)
    made.resize(420, 240)
    made.show()
    long = {500: 5.0, 501: 14.0, 800: 9.0}
    times = np.linspace(NOW - 90, NOW, 1000)
    take(made, [Sample(t, long.get(i, 0.03)) for i, t in enumerate(times)])
    made.redraw()
    return made


def test_outliers_are_counted_above_the_axis(itl: LatencyChart) -> None:
    assert itl.view.y_range.high < 100  # the lines stay readable
    short, full = itl.view.above_texts
    assert numbers(short) == [3] and numbers(full) == [3, 14]
    assert itl.curves.peaks.num_points >= 2
    tall = np.concatenate([line.y() for line in map(Drawn, itl.curves.lines.values())])
    assert tall.max() <= itl.view.y_range.high
    at = float(itl.data.history["samples"].times[501])
    itl.legend.keys["p50"].setChecked(False)
    assert {reading.y for reading in itl.readings_at(at)} >= {14_000.0}
    itl.legend.keys["samples"].setChecked(False)
    itl.redraw()
    assert itl.view.above_texts == ("", "")


def test_a_label_agrees_with_the_end_of_its_line(itl: LatencyChart) -> None:
    for label in itl.view.end_labels:
        key = "p99" if label.label.startswith("max") else label.label
        end = Drawn(itl.curves.lines[key]).y()[-1]
        assert end == pytest.approx(min(label.y, itl.view.y_range.high))


def test_a_logarithmic_axis_shows_outliers(qtbot, itl: LatencyChart) -> None:
    qtbot.keyClick(itl, Qt.Key.Key_L)
    shown = itl.view.y_range
    assert itl.is_log and shown.is_log and shown.high >= 14_000 and shown.low <= 30
    assert itl.view.above_texts == ("", "") and itl.curves.peaks.num_points == 0
    assert itl._header.title == "ITL, s"
    itl.clear()
    itl.redraw()
    assert itl.is_log  # while the window lives
    qtbot.keyClick(itl, Qt.Key.Key_L)
    assert not itl.view.y_range.is_log


def test_seconds_replace_thousands_of_milliseconds(qtbot, clock: RedrawClock) -> None:
    chart = latency_chart("TTFT", clock)
    qtbot.addWidget(chart)
    take(chart, [Sample(NOW - 5, 0.4), Sample(NOW - 4, 48.888)])
    chart.redraw()
    labels = {label.label: label.value for label in chart.view.end_labels}
    assert labels == {"p50": "24.6", "max of 2": "48.9"}
    assert chart._header.title == chart.accessibleName() == "TTFT, s"
    assert {text for _, text in chart.view._y_ticks()} >= {"0", "50"}
    assert chart.values_table().headers[1] == "samples (ms)"
    texts = {reading.label: reading.value for reading in chart.readings_at(NOW - 4)}
    assert texts["samples"] == "48.888 s"
    chart.store.clear()
    chart.clear()
    take(chart, [Sample(NOW - 1, 0.4)])
    chart.redraw()
    assert chart._header.title == "TTFT, ms"
