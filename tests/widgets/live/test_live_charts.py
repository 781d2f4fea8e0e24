"""The charts show what the snapshots say."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
from PySide6.QtWidgets import QScrollArea

from engine.snapshot import Counters, GpuFigures, Sample, StepRecord
from tests.widgets.live.conftest import redraw, take, values
from tests.widgets.synthetic import GIB, divided_snapshot, load_run, snapshot
from widgets.live.chart_grid import columns_for, grid_for
from widgets.live.charts import LiveCharts
from widgets.live.figures import FIGURES
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.plot.series import PREDICTED
from widgets.theme.fonts import set_text_scale


def test_blocks_that_were_held_between_two_states_are_in_the_chart(charts: LiveCharts) -> None:
    now = time.perf_counter()
    usage = (0.1, 0.7, 0.3, 0.2)
    steps = tuple(
        StepRecord(i, now - 1 + i / 10, 0.05, (), 0, 0, kv_usage=u) for i, u in enumerate(usage)
    )
    idle = snapshot(now)
    take(charts, dataclasses.replace(idle, steps=steps))
    used = charts.cache.data.history["kv_usage"]
    assert used.values.max() == pytest.approx(70)
    assert used.last() == (idle.time, pytest.approx(idle.kv_usage * 100))
    assert list(used.times) == sorted(used.times)


def test_the_charts_show_what_the_snapshots_say(charts: LiveCharts) -> None:
    end = time.perf_counter()
    for one in load_run(end, 60):
        take(charts, one)
    redraw(charts)
    newest = {
        chart.title: {label.label: label.y for label in chart.view.end_labels}
        for chart in charts.charts
    }
    assert newest["Requests"] == {"running": one.num_running, "waiting": one.num_waiting}
    assert newest["KV cache"]["used"] == pytest.approx(one.kv_usage * 100, abs=0.5)
    stacked = charts.memory.data.history
    assert stacked["weights"].last()[1] == pytest.approx(one.memory.weights / GIB)
    assert stacked["kv_cached"].last()[1] == pytest.approx(one.memory.kv_cached / GIB, abs=0.01)
    assert newest["Memory"]["total ↑"] == pytest.approx(one.memory.total / GIB)
    assert "GPU" not in newest["Memory"]
    names = newest["TTFT"].keys() - {"p50"}
    assert len(names) == 1 and all(n == "p99" or n.startswith("max of ") for n in names)
    assert 25 < newest["ITL"]["p50"] < 40
    assert 120 < newest["Tokens per second"]["out"] < 260
    for chart in charts.charts:
        assert chart.values_table().rows


@pytest.mark.slow
def test_an_hour_of_snapshots_stays_bounded(charts: LiveCharts) -> None:
    end = time.perf_counter()
    for i in range(3000):
        at = end - 3600 + i * 1.2
        sample = (Sample(at, 0.03),) * 30
        take(charts, snapshot(at, num_running=1, ttft=sample, itl=sample))
        if i % 500 == 0:
            redraw(charts)
    charts.set_window(1200.0)
    redraw(charts)
    for chart in charts.charts:
        for ring in chart.data.history.values():
            assert len(ring) <= ring.capacity
            assert not len(ring) or ring.times[-1] - ring.times[0] <= 1201
        assert all(count <= 610 for count in chart.num_drawn_points().values())


def test_states_are_kept_five_times_a_second_and_samples_all(charts: LiveCharts) -> None:
    end = time.perf_counter()
    for i in range(100):
        at = end - 1 + i * 0.01
        take(charts, snapshot(at, num_running=1, itl=(Sample(at, 0.03),)))
    assert len(charts.requests.data.history["running"]) == 5
    assert len(charts.itl.data.history["samples"]) == 100


def test_the_last_state_of_a_run_is_kept(charts: LiveCharts) -> None:
    end = time.perf_counter()
    take(charts, snapshot(end - 0.05, num_running=1))
    take(charts, snapshot(end, num_running=0))
    assert charts.requests.data.history["running"].last()[1] == 0


def test_the_line_of_before_is_level_and_ends_with_its_epoch(charts: LiveCharts) -> None:
    start = time.perf_counter() - 40.0
    other = dataclasses.replace(snapshot(0.0).model, path="/models/other")
    for i, value in enumerate((0.05, 0.4, 0.1, 0.2)):
        at = start + 10 * i
        samples = tuple(Sample(at + 1 + n / 10, value) for n in range(9))
        new = dataclasses.replace(snapshot(at + 3), settings_since=at)
        if i == 3:
            new = dataclasses.replace(new, model=other)
        take(charts, dataclasses.replace(new, ttft=samples))
        charts.ttft.prepare(at + 3)
    x, y = charts.ttft.data.line_points("before", start + 35, 60.0)
    steps = np.diff(y)
    assert not np.nan_to_num(steps).any() and set(y[np.isfinite(y)]) == {50.0, 400.0}
    assert np.ptp(x[y == 50.0]) == pytest.approx(10) == np.ptp(x[y == 400.0])
    assert np.isnan(y[-1])  # another model has none


def test_tokens_per_second_come_from_the_counters(charts: LiveCharts) -> None:
    start = math.floor(time.perf_counter()) - 10.0
    charts.store.time.set_speed(0.0)
    for i in range(51):  # 100 out and 1,000 in per second, for 10 s; 7,000 before
        counters = Counters(prompt_tokens=7000 + 200 * i, generation_tokens=7000 + 20 * i)
        take(charts, snapshot(start + i * 0.2, num_running=int(i < 50), counters=counters))
    charts.tokens.prepare(start + 11.5)
    charts.tokens.prepare(start + 16)
    out = charts.tokens.data.history["out"]
    rates = dict(zip(out.times, out.values, strict=True))
    assert rates[start + 4] == rates[start + 5] == pytest.approx(100)
    assert np.nanmax(charts.tokens.data.history["in"].values) == pytest.approx(1000)
    assert rates[start + 10] == pytest.approx(100) and rates[start + 14] == 0
    assert np.nansum(out.values) == pytest.approx(1000, abs=100)  # none from before


def test_the_prefix_hit_rate_is_that_of_the_last_minute(charts: LiveCharts) -> None:
    end = time.perf_counter()
    early = Counters(prefix_queries=1000, prefix_hits=0)
    late = Counters(prefix_queries=1100, prefix_hits=80)
    take(charts, snapshot(end - 100, counters=early))
    take(charts, snapshot(end - 70, counters=early))
    take(charts, snapshot(end, counters=late))
    assert charts.cache.data.history["prefix_hits"].last()[1] == pytest.approx(80.0)


CARD = GpuFigures(
    "A card", total=16 * GIB, used=5 * GIB, own=GIB, utilization=0.75, memory_utilization=0.4,
    power_w=412.0, power_limit_w=700.0, temperature_c=61.0, clock_mhz=1500.0, max_clock_mhz=2000.0,
)


def test_gpus_have_charts_of_their_own_once_there_are_some(charts: LiveCharts) -> None:
    key = charts.memory.legend.keys["gpu"]
    assert key.isHidden() and len(charts.charts) == 6
    now = time.perf_counter()
    take(charts, snapshot(now))
    charts.mark("before")
    charts.update_gpus(now, (CARD, dataclasses.replace(CARD, temperature_c=80.0, utilization=0.1)))
    redraw(charts)
    assert not key.isHidden()
    assert {label.label: label.value for label in charts.memory.view.end_labels}["GPU"] == "10.00"
    *six, load, power = charts.charts
    assert len(six) == 6 and load.isVisibleTo(charts) and power.isVisibleTo(charts)
    ends = {label.label: label.value for chart in (load, power) for label in chart.view.end_labels}
    assert ends == {"busy": "75", "memory": "40", "clock": "75", "power": "59", "°C": "80"}
    assert [mark.text for mark in load.marks] == ["before"]
    assert load.window_s == six[0].window_s


def test_what_a_gpu_does_not_tell_is_not_drawn(charts: LiveCharts) -> None:
    now = time.perf_counter()
    take(charts, snapshot(now))
    charts.update_gpus(now, (GpuFigures("A card", total=16 * GIB, used=GIB),))
    redraw(charts)
    load, power = charts.charts[-2:]
    assert all(key.isHidden() for chart in (load, power) for key in chart.legend.keys.values())
    assert load.data.is_empty and power.data.is_empty
    assert charts.memory.data.history["gpu"].last()[1] == pytest.approx(1.0)


def test_what_of_a_model_is_in_ram_is_told(charts: LiveCharts, strip: StatStrip) -> None:
    divided = divided_snapshot(1.0)
    for view in (charts, strip):
        take(view, divided)
    assert charts.memory.note.endswith("; 788 MiB in RAM")
    values(strip)
    figure = next(one for one in FIGURES if one.key == "memory")
    assert all(size in strip._tip(figure) for size in (" MiB of weights", " MiB of KV"))
    assert "cuda:0 20/28 layers, RTX 3050" in strip.title
    take(strip, snapshot(2.0))
    values(strip)
    assert "0.34 GiB" not in strip._tip(figure)


def test_the_memory_of_a_divided_gpu_is_counted_once(charts: LiveCharts) -> None:
    now = time.perf_counter()
    take(charts, snapshot(now))
    whole = dataclasses.replace(CARD, uuid="GPU-0")
    part = GpuFigures("A part", total=8 * GIB, used=2 * GIB, uuid="MIG-0", part_of="GPU-0")
    other = dataclasses.replace(part, uuid="MIG-1", used=3 * GIB)
    charts.update_gpus(now, (whole, part, other))
    assert charts.memory.data.history["gpu"].last()[1] == pytest.approx(5.0)


def test_a_mark_stands_in_every_chart_at_the_engines_time(charts: LiveCharts) -> None:
    take(charts, snapshot(5000.0))  # another clock than ours
    charts.mark("max_num_seqs 8 → 16")
    for chart in charts.charts:
        (mark,) = chart.marks
        assert mark.text == "max_num_seqs 8 → 16"
        assert 5000.0 <= mark.time < 5005.0


def test_pausing_and_clearing_reach_every_chart(charts: LiveCharts) -> None:
    take(charts, snapshot(time.perf_counter(), num_running=1))
    charts.set_paused(True)
    assert all(chart.is_paused for chart in charts.charts)
    charts.set_paused(False)
    charts.clear()
    redraw(charts)
    assert all(chart.data.is_empty for chart in charts.charts)
    assert all(chart.view.empty_text for chart in charts.charts)


def test_one_choice_of_time_holds_for_all(charts: LiveCharts) -> None:
    charts.ttft.window_changed.emit(600.0)
    assert {chart.window_s for chart in charts.charts} == {600.0}
    assert "last 10 min" in charts.ttft.note


@pytest.mark.parametrize(
    ("width", "height", "columns"),
    [(1300, 480, 3), (900, 400, 3), (700, 400, 2), (400, 700, 1), (1500, 220, 6), (1500, 480, 3),
     (855, 296, 3), (855, 480, 2), (590, 250, 2)],
)
def test_the_grid_fits_its_place(qtbot, charts: LiveCharts, width, height, columns) -> None:
    assert columns_for(width, height) == columns
    charts.resize(width, height)
    charts.show()
    assert charts.num_columns == columns
    widths = {chart.width() for chart in charts.charts}
    assert max(widths) - min(widths) <= 1
    assert all(chart.geometry().right() <= charts.width() for chart in charts.charts)


def test_where_room_is_scarce_rows_are_lower_before_one_lies_below_the_fold(
    qtbot, charts: LiveCharts
) -> None:
    charts.resize(855, 278)
    charts.show()
    bar = charts.findChild(QScrollArea).verticalScrollBar()
    qtbot.waitUntil(lambda: charts.num_columns == 3 and bar.maximum() == 0)
    charts.resize(855, 500)
    qtbot.waitUntil(lambda: charts.num_columns == 2 and bar.maximum() == 0)
    assert {chart.height() for chart in charts.charts} == {charts.charts[0].height()}
    assert charts.charts[0].height() >= 150


@pytest.mark.parametrize(
    ("width", "height", "columns", "num_seen"),
    [(1175, 285, 2, 4), (855, 278, 2, 4), (1500, 300, 4, 4), (1300, 250, 2, 4),
     (1400, 180, 4, 4), (480, 300, 1, 2), (2100, 600, 3, 6)],
)
def test_four_charts_lead_where_six_would_be_small(
    qtbot, clock: RedrawClock, width: int, height: int, columns: int, num_seen: int
) -> None:
    charts = LiveCharts(MetricStore(), clock, leads=True)
    qtbot.addWidget(charts)
    charts.resize(width, height)
    charts.show()
    bar = charts.findChild(QScrollArea).verticalScrollBar()
    qtbot.waitUntil(lambda: charts.num_columns == columns and (bar.maximum() > 0) == (num_seen < 6))
    bottoms = [chart.mapTo(charts, chart.rect().bottomLeft()).y() for chart in charts.charts]
    assert sum(bottom <= height for bottom in bottoms) == num_seen
    bar.setValue(bar.maximum())
    last = charts.charts[-1]
    assert last.mapTo(charts, last.rect().bottomLeft()).y() <= height


def test_rows_grow_with_their_text() -> None:
    heights = []
    for scale in (1.0, 1.6):
        set_text_scale(scale)
        heights.append(grid_for(855, 180, 6, leads=True)[1])
    set_text_scale(1.0)
    assert heights[1] - heights[0] == 36


def test_large_text_has_fewer_columns() -> None:
    """Else end labels and legends cover the curves."""
    columns = []
    for scale in (1.0, 1.6):
        set_text_scale(scale)
        columns.append(grid_for(660, 310, 6, leads=True)[0])
    set_text_scale(1.0)
    assert columns == [2, 1]


def test_times_line_up_from_chart_to_chart(charts: LiveCharts) -> None:
    charts.show()
    for one in load_run(time.perf_counter(), 5):
        take(charts, one)
    redraw(charts)
    rights = {round(chart.view.plot_rect.right()) for chart in charts.charts}
    assert max(rights) - min(rights) <= 1


def test_a_snapshot_is_taken_without_drawing(charts: LiveCharts) -> None:
    charts.show()
    drawn = [chart.num_drawn_points() for chart in charts.charts]
    for one in load_run(time.perf_counter(), 5):
        take(charts, one)
    assert [chart.num_drawn_points() for chart in charts.charts] == drawn


def test_no_timer_is_left(qtbot, charts: LiveCharts, clock: RedrawClock) -> None:
    charts.show()
    take(charts, snapshot(time.perf_counter(), num_running=1))
    assert clock.is_running
    charts.close()
    qtbot.waitUntil(lambda: not clock.is_running, timeout=2000)


def test_an_idle_minute_has_no_slopes(charts: LiveCharts) -> None:
    """No states come while nothing happens: memory and cache were what they were until the next."""
    parts = dict.fromkeys(charts.memory.stacked, 1.0)
    for at in 10.0, 11.0, 70.0, 71.0:
        share = 90.0 if at < 60 else 10.0
        charts.memory.append_row(at, parts | {"other": share})
        charts.cache.append("kv_usage", at, share)
        charts.cache.append("prefix_hits", at, share)
    times, shares = charts.memory.data.stack_points(71.0, 120.0)
    lines = [charts.cache.data.line_points(key, 71.0, 120.0) for key in ("kv_usage", "prefix_hits")]
    for x, y in ((times, shares["other"]), *lines):
        assert list(y[:3]) == [90.0, 90.0, 90.0] and y[3] == 10.0
        assert x[2] == x[3] == -1.0


def test_a_prediction_is_drawn_beside_what_was_measured_and_goes_again(charts: LiveCharts) -> None:
    end = time.perf_counter()
    for one in load_run(end, 60):
        take(charts, one)
    times = np.linspace(end - 60, end, 30)
    values = {"ttft": 300.0, "itl": 33.0, "tokens": 70.0, "requests": 5.0, "cache": 40.0}
    charts.show_prediction({name: (times, np.full(30, v)) for name, v in values.items()})
    redraw(charts)
    for name, value in values.items():
        chart = getattr(charts, name)
        labels = {label.label.removesuffix(" ↑"): label.y for label in chart.view.end_labels}
        assert labels[PREDICTED] == value and chart.is_available(PREDICTED)
        assert chart.num_drawn_points()[PREDICTED] > 1
    charts.show_prediction({"itl": (times, np.full(30, 20.0))})  # of the others none
    charts.show_prediction({})
    redraw(charts)
    for name in values:
        chart = getattr(charts, name)
        assert not chart.is_available(PREDICTED) and not chart.num_drawn_points()[PREDICTED]
        assert PREDICTED not in {label.label for label in chart.view.end_labels}
