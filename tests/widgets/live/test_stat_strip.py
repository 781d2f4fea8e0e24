"""The strip shows what the snapshots say."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time

import pytest
from PySide6.QtGui import QFontMetricsF
from pytestqt.qtbot import QtBot

from engine.snapshot import Counters, RequestState, Sample
from tests.figures import numbers
from tests.widgets.live.conftest import redraw_strip, take, values
from tests.widgets.synthetic import GIB, load_run, memory, requests, snapshot
from widgets.live.charts import LiveCharts
from widgets.live.figures import FIGURES, header_values, state_text
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import SPACE_4


@pytest.mark.parametrize(
    ("device", "name", "words"),
    [
        ("cpu", "A processor", "cpu, 2 threads"),
        ("cuda:0", "NVIDIA H200", "cuda:0, H200"),
        ("cuda:1", "NVIDIA GeForce RTX 4090", "cuda:1, RTX 4090"),
    ],
)
def test_the_strip_shows_the_device(
    strip: StatStrip, device: str, name: str, words: str
) -> None:
    seen = snapshot(1.0)
    model = dataclasses.replace(seen.model, device=device, device_name=name)
    take(strip, dataclasses.replace(seen, model=model))
    assert strip.title.endswith(f"  ·  {words}")


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
    assert found["memory"] == f"{one.memory.process / GIB:.1f} / {one.memory.total / GIB:.1f}"
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
    # a long prefill, or a busy window: the last known second, and a dash when that is long ago
    assert header_values(strip.store, now + 9)["output"][:2] == ("100", True)
    assert header_values(strip.store, now + 11)["output"].text == "–"
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
    take(strip, snapshot(now + 0.1, num_running=1, num_used=576))
    strip.set_state("The engine stopped", "error")
    strip.clock.is_beat = False
    strip.redraw()
    assert strip._values["kv"].text == "10"
    assert strip.wants_redraw()  # it is not forgotten
    assert "The engine stopped" in strip.accessibleDescription()
    strip.clock.is_beat = True
    strip.redraw()
    assert strip._values["kv"].text == "50"


def test_header_and_charts_show_the_same_snapshot(qtbot: QtBot, clock: RedrawClock) -> None:
    store = MetricStore()
    strip, charts = StatStrip(store, clock), LiveCharts(store, clock)
    for view in (strip, charts):
        qtbot.addWidget(view)
        view.resize(1280, 700)
        view.show()
    began, seen = time.perf_counter() - 10, set()
    for turn, used in enumerate((115, 230, 346, 461, 576)):
        one = snapshot(began + turn / 3, num_running=1, num_used=used)
        store.update(one)
        strip.update_snapshot(one)
        charts.update_snapshot(one)
        if turn % 2:
            continue  # the next comes before the beat
        qtbot.waitUntil(lambda: not clock._beat.isActive() and not clock._rest.isActive())
        labels = {label.label: label.value for label in charts.cache.view.end_labels}
        assert labels["used"] == strip._values["kv"].text
        seen.add(labels["used"])
    assert seen == {"10", "30", "50"}


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


@pytest.mark.parametrize("has_switch", (False, True))
def test_a_device_without_room_beside_the_model_is_beside_the_state(
    strip: StatStrip, has_switch: bool
) -> None:
    switch = strip.add_switch(lambda: None, "file.models") if has_switch else None
    strip.show()
    take(strip, snapshot(1.0))
    redraw_strip(strip)
    name, *_, device = strip.title.split("  ·  ")
    rows: dict[int, tuple[str, str]] = {}
    for width in range(1400, 300, -20):
        strip.resize(width, strip.height())
        rows[width] = title, state = strip._lines(strip._words_end)
        assert title.startswith(name) and f"{title} {state}".count(device) == 1
        if switch is not None:
            assert title.startswith(switch.text().rstrip("…")) and device in switch.toolTip()
            assert title != strip.title or "…" not in switch.text()  # else the device is below
    busy = dataclasses.replace(snapshot(1.0), requests=tuple(requests(8, 0)))
    take(strip, busy)
    redraw_strip(strip)
    strip.resize(900, strip.height())  # of a window of 1000 pixels
    state, metrics = strip._lines(0.0)[1], QFontMetricsF(strip._state_font)
    assert "8 running" in state and device in state
    assert metrics.horizontalAdvance(state) + 2 * SPACE_4 <= strip._words_end
    take(strip, snapshot(2.0))
    assert rows[1400] == (strip.title, strip.state[0])
    assert rows[320][1] == f"{strip.state[0]}  ·  {device}"
    assert strip.text().count(device) == 1


def test_sparklines_give_way_before_figures(strip: StatStrip) -> None:
    lefts = {}
    for width in (1600, 900):
        strip.resize(width, strip.height())
        lefts[width] = [width - place.left() for _, place in strip.shown_figures()]
    assert len(lefts[1600]) == len(lefts[900]) == len(FIGURES)
    assert lefts[1600][0] > lefts[900][0] + 100


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


def test_the_total_of_the_memory_stays_while_other_programs_come_and_go(
    strip: StatStrip, charts: LiveCharts
) -> None:
    """A plan's limit depends on what was free as it was made."""
    shown = set()
    for limit, one in zip((17, 18.5, 16.5), load_run(time.perf_counter(), 20), strict=False):
        plan = dataclasses.replace(one.memory.plan, limit=int(limit * GIB))
        changed = dataclasses.replace(one, memory=dataclasses.replace(one.memory, plan=plan))
        take(strip, changed)
        take(charts, changed)
        shown.add((values(strip)["memory"].split(" / ")[1], charts.memory._limit))
    assert shown == {("16.0", 16.0)}


def test_memory_of_the_strip_and_of_the_chart_agree(strip: StatStrip, charts: LiveCharts) -> None:
    now = time.perf_counter()
    one = snapshot(now, num_used=500, num_cached=100)
    take(strip, one)
    take(charts, one)
    stacked = sum(charts.memory.data.history[k].last()[1] for k in charts.memory.stacked)
    assert values(strip)["memory"].startswith(f"{stacked:.1f} / ")
    assert memory(500, 100).process / GIB == pytest.approx(stacked)
