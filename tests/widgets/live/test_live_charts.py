"""The charts and the strip show what the snapshots say."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication, QScrollArea

from engine.snapshot import Counters, EngineSnapshot, GpuFigures, RequestState, Sample, StepRecord
from tests.figures import numbers
from tests.widgets.synthetic import GIB, divided_snapshot, load_run, memory, snapshot
from widgets.live.chart_grid import columns_for, grid_for
from widgets.live.charts import LiveCharts
from widgets.live.figures import FIGURES, header_values, state_text
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.theme.fonts import set_text_scale
from widgets.theme.theme import apply_theme


@pytest.fixture
def clock(qapp: QApplication):
    apply_theme(qapp, "light")
    made = RedrawClock(rate_hz=20)
    yield made
    made._timer.stop()


@pytest.fixture
def charts(qtbot, clock: RedrawClock) -> LiveCharts:
    made = LiveCharts(MetricStore(), clock)
    qtbot.addWidget(made)
    made.resize(1300, 480)
    return made


@pytest.fixture
def strip(qtbot, clock: RedrawClock) -> StatStrip:
    made = StatStrip(MetricStore(), clock)
    qtbot.addWidget(made)
    made.resize(1280, made.sizeHint().height())
    return made


def take(view: LiveCharts | StatStrip, one: EngineSnapshot) -> None:
    view.store.update(one)
    view.update_snapshot(one)


def redraw(charts: LiveCharts) -> None:
    for chart in charts.charts:
        chart.redraw()


def redraw_strip(strip: StatStrip) -> None:
    strip._drawn_at = -math.inf  # as if the last time was long ago
    strip.redraw()


def values(strip: StatStrip) -> dict[str, str]:
    redraw_strip(strip)
    return {key: value.text for key, value in strip._values.items()}


# Charts ---------------------------------------------------------------------------------------


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
    assert newest["Memory"]["limit"] == pytest.approx(3.6, abs=0.01)
    assert "GPU" not in newest["Memory"]
    assert set(newest["TTFT"]) == {"p50", "max"} or set(newest["TTFT"]) == {"p50", "p99"}
    assert 25 < newest["ITL"]["p50"] < 40
    assert 120 < newest["Tokens per second"]["out"] < 260
    for chart in charts.charts:
        assert chart.values_table().rows


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
        take(charts, snapshot(start + i * 0.2, num_running=1, counters=counters))
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


# Strip ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "name", "ranks", "stages", "words"),
    [
        ("cpu", "A processor", 1, 1, "cpu, 2 threads"),
        ("cpu", "A processor", 2, 1, "cpu, TP 2, 2 threads"),
        ("cuda:0", "NVIDIA H200", 1, 1, "cuda:0, H200"),
        ("cuda:1", "4 x NVIDIA H200", 4, 1, "cuda:1, TP 4, H200"),
        ("cuda:1", "4 x NVIDIA H200, pipeline parallel", 1, 4, "cuda:1, PP 4, H200"),
    ],
)
def test_the_strip_shows_the_parallel_sizes(
    strip: StatStrip, device: str, name: str, ranks: int, stages: int, words: str
) -> None:
    seen = snapshot(1.0)
    model = dataclasses.replace(
        seen.model, device=device, device_name=name, num_ranks=ranks, num_stages=stages
    )
    take(strip, dataclasses.replace(seen, model=model))
    assert strip.title.endswith(f"  ·  {words}")
    values(strip)
    tip = strip._tip(next(one for one in FIGURES if one.key == "memory"))
    assert ("cuda:1" in tip and "4 GPUs" in tip) == (4 in (ranks, stages))


def test_the_strip_starts_with_nothing(strip: StatStrip) -> None:
    assert set(values(strip).values()) == {"–"}
    assert strip.title == "No model"
    assert strip.state == ("Open a model to start", "idle")


def test_the_strip_says_what_runs(strip: StatStrip) -> None:
    for one in load_run(time.perf_counter(), 20):
        take(strip, one)
    found = values(strip)
    name, size, weights, where = strip.title.split("  ·  ")
    assert (name, weights) == ("Qwen3-0.6B", "BF16") and size.endswith("iB")
    assert where.startswith("cpu") and numbers(where) == [2]
    assert strip.state == (
        f"{one.num_running} running · {one.num_waiting} waiting", "busy",
    )  # fmt: skip
    requests = one.requests
    out = [dataclasses.replace(r, state=RequestState.PREEMPTED) for r in requests[:2]]
    state, _ = state_text(dataclasses.replace(one, requests=(*out, *requests[2:])))
    running, waiting = one.num_running - 2, one.num_waiting + 2
    assert re.findall(r"\d+", state) == [str(running), str(waiting), "2"]
    assert 150 < int(found["output"]) < 250
    assert 80 < int(found["ttft"]) < 160
    p50, p99 = (int(text) for text in found["itl"].split(" / "))
    assert 22 < p50 < p99 < 60
    assert found["kv"] == f"{one.kv_usage * 100:.0f}"
    assert found["memory"] == f"{one.memory.process / GIB:.1f} / 3.6"
    assert "TTFT p50" in strip.accessibleDescription()


def test_an_idle_engine_is_ready_and_writes_nothing(strip: StatStrip) -> None:
    take(strip, snapshot(time.perf_counter()))
    assert strip.state == ("Ready", "idle")
    assert values(strip)["output"] == "–"


def test_the_output_rate_comes_to_rest(strip: StatStrip) -> None:
    now = 5000.0
    for i in range(51):
        counters = Counters(generation_tokens=10 * i)
        take(strip, snapshot(now - 5 + i * 0.1, num_running=1, counters=counters))
    assert header_values(strip.store, now)["output"].text == "100"
    assert header_values(strip.store, now + 10)["output"][:2] == ("0", True)  # a long prefill
    take(strip, snapshot(now, counters=counters))
    assert header_values(strip.store, now)["output"].is_firm
    assert header_values(strip.store, now + 10)["output"][:2] == ("0", False)  # idle


def test_old_prefix_hits_are_not_current(strip: StatStrip) -> None:
    for at in (1000.0, 1001.0):
        counters = Counters(prefix_hits=round(at) - 1000, prefix_queries=4 * (round(at) - 1000))
        take(strip, snapshot(at, counters=counters))
    assert header_values(strip.store, 1002.0)["hits"][:2] == ("25", True)
    assert header_values(strip.store, 2000.0)["hits"][:2] == ("25", False)


def test_few_gaps_have_no_p99(strip: StatStrip) -> None:
    now = time.perf_counter()
    take(strip, snapshot(now, itl=tuple(Sample(now, 0.02) for _ in range(99))))
    assert values(strip)["itl"] == "20 / –"
    take(strip, snapshot(now, itl=(Sample(now, 0.02),)))
    assert values(strip)["itl"] == "20 / 20"


def test_old_latencies_are_kept_but_not_as_current(strip: StatStrip) -> None:
    take(strip, snapshot(1000.0, ttft=(Sample(1000.0, 0.084),) * 20))
    assert header_values(strip.store, 1000.0)["ttft"][:2] == ("84", True)
    assert header_values(strip.store, 2000.0)["ttft"][:2] == ("84", False)


def test_figures_change_at_a_readable_pace_and_words_at_once(strip: StatStrip) -> None:
    now = time.perf_counter()
    take(strip, snapshot(now, num_running=1, num_used=115))
    redraw_strip(strip)
    take(strip, snapshot(now, num_running=1, num_used=576))
    strip.redraw()
    assert strip._values["kv"].text == "10"
    assert strip.wants_redraw()  # it is not forgotten
    strip.set_state("The engine stopped", "error")
    strip.redraw()
    assert strip._values["kv"].text == "50"
    assert "The engine stopped" in strip.accessibleDescription()


def test_the_newest_word_on_the_state_counts(strip: StatStrip) -> None:
    take(strip, snapshot(time.perf_counter(), num_running=2))
    strip.set_state("Loading weights", "loading")
    assert strip.state == ("Loading weights", "loading")
    take(strip, snapshot(time.perf_counter(), num_running=2))
    assert strip.state[1] == "busy"
    strip.store.end()
    strip.clear()
    assert values(strip)["memory"] == "–"


@pytest.mark.parametrize(
    ("width", "keys"),
    [
        (1280, ["output", "ttft", "itl", "kv", "hits", "memory"]),
        (700, ["output", "ttft", "itl", "memory"]),
        (420, ["itl"]),
        (250, []),
    ],
)
def test_a_narrow_strip_drops_figures_instead_of_cutting(strip, width, keys) -> None:
    strip.resize(width, strip.height())
    shown = strip.shown_figures()
    assert set(keys) >= {one.key for one, _ in shown} >= set(keys[:1])
    lefts = [place.left() for _, place in shown]
    assert lefts == sorted(lefts)
    assert all(place.right() <= width - 8 for _, place in shown)
    assert all(a.right() < b.left() for (_, a), (_, b) in itertools.pairwise(shown))


def test_sparklines_give_way_before_figures(strip: StatStrip) -> None:
    lefts = {}
    for width in (1600, 820):
        strip.resize(width, strip.height())
        lefts[width] = [width - place.left() for _, place in strip.shown_figures()]
    assert len(lefts[1600]) == len(lefts[820]) == len(FIGURES)
    assert lefts[1600][0] > lefts[820][0] + 100


def test_a_sparkline_is_drawn_beside_its_figure(strip: StatStrip) -> None:
    strip.resize(1600, strip.height())
    now = time.perf_counter()
    pictures = []
    for at in (now - 5, now - 3, now - 1):
        itl = tuple(Sample(at, 0.02) for _ in range(100))
        take(strip, snapshot(at, num_running=1, itl=itl))
        redraw_strip(strip)
        place = next(rect for one, rect in strip.shown_figures() if one.key == "itl")
        place.setLeft(place.right() - 50)
        pictures.append(strip.grab(place.toRect()).toImage())
    assert pictures[0] != pictures[1] != pictures[2]  # no line of one point


def test_figures_do_not_move_when_their_values_change(strip: StatStrip) -> None:
    now = time.perf_counter()
    take(strip, snapshot(now, num_used=10, ttft=(Sample(now, 0.0995),)))
    redraw_strip(strip)
    before = [place for _, place in strip.shown_figures()]
    take(strip, snapshot(now, num_used=1100, ttft=(Sample(now, 1.2),) * 9))
    redraw_strip(strip)
    assert [place for _, place in strip.shown_figures()] == before


def test_memory_of_the_strip_and_of_the_chart_agree(strip: StatStrip, charts: LiveCharts) -> None:
    now = time.perf_counter()
    one = snapshot(now, num_used=500, num_cached=100)
    take(strip, one)
    take(charts, one)
    stacked = sum(charts.memory.data.history[k].last()[1] for k in charts.memory.stacked)
    assert values(strip)["memory"].startswith(f"{stacked:.1f} / ")
    assert memory(500, 100).process / GIB == pytest.approx(stacked)


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
