"""Two ranges as numbers: what is counted, what is left out, and which ranges a mark has. No Qt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.comparison import (
    BETTER,
    REACH_S,
    TimeRange,
    around,
    as_text,
    change,
    compare,
    in_brief,
    pause_text,
    ranges_of,
    tone,
    values_of,
    why_not_compared,
)
from app.features.tune.verdict import judge
from engine.snapshot import Sample
from engine.snapshot.metrics import METRICS
from tests.figures import numbers
from tests.widgets.synthetic import CONFIG, snapshot
from widgets.live.metric_store import MetricStore
from widgets.plot.series import Mark


def fed(ttft: list[Sample], itl: list[Sample], until: float = 20.0) -> MetricStore:
    """States every second from 0 on; all samples at once."""
    history = MetricStore()
    for second in range(int(until) + 1):
        history.update(replace(snapshot(float(second)), ttft=(), itl=()))
    history.update(replace(snapshot(until), ttft=tuple(ttft), itl=tuple(itl)))
    return history


MARKS = st.lists(st.floats(0, 500), min_size=1, max_size=8, unique=True).map(sorted)


@given(MARKS, st.integers(0, 7), st.floats(0, 100), st.floats(0, 200))
def test_the_ranges_of_a_mark_touch_it_and_hold_no_other(
    times: list[float], index: int, began: float, later: float
) -> None:
    marks = [Mark(at, "m") for at in times]
    mark = marks[index % len(marks)]
    now = times[-1] + later
    a, b = around(mark, marks, began, now)
    assert a.end == b.start == mark.time
    assert a.start <= a.end and b.start <= b.end <= now
    assert max(a.seconds, b.seconds) <= REACH_S + 1e-9
    for other in marks:
        assert not a.start < other.time < a.end and not b.start < other.time < b.end


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_a_change_is_relative_to_what_was_before(before: float, after: float) -> None:
    share = change(before, after)
    assert share is not None
    assert before * (1 + share) == pytest.approx(after)


def test_changes_are_judged_by_their_metric() -> None:
    assert change(0.0, 3.0) is None and change(None, 3.0) is None
    ttft = METRICS["ttft"]
    assert tone(ttft, 0.5, True) == "worse" and tone(ttft, -0.5, True) == "better"
    assert tone(METRICS["output"], 0.5, True) == "better"
    assert tone(METRICS["kv_usage"], 0.5, True) == ""
    assert tone(METRICS["itl"], 0.01, True) == ""  # too little to be called anything
    assert tone(METRICS["itl"], -0.25, False) == ""  # within the spread


def test_the_copied_table_has_a_line_a_metric() -> None:
    ttft = [Sample(1.0, 0.1), Sample(11.0, 0.20004)]
    history = fed(ttft, [Sample(1.5, 0.02), Sample(11.5, 0.01)])
    a, b = TimeRange(0.0, 10.0), TimeRange(10.0, 20.0)
    rows = compare(history, a, b)
    lines = as_text(rows, a, b).splitlines()
    assert numbers(lines[0]) == [10, 10] and len(lines) == 2 + len(BETTER)
    assert lines[2].split("\t")[:5] == ["TTFT", "ms", "100", "200.04", "100.04"]
    assert "TTFT 100 → 200 ms (+100 %)" in in_brief(rows)
    history = fed([Sample(1.0, 0.75), Sample(11.0, 3.0)], [])
    assert "TTFT 0.750 → 3.00 s (+300 %)" in in_brief(compare(history, a, b))


@pytest.mark.parametrize("busy", ["", "A", "B", "AB"])
def test_ranges_without_requests_are_not_compared(busy: str) -> None:
    """KV usage and throughput of an idle engine say nothing of the change."""
    times = {"A": 1.0, "B": 11.0}
    history = MetricStore()
    for second in range(21):
        history.update(snapshot(float(second), num_used=5 if second < 10 else 0))
    samples = tuple(Sample(times[side], 0.1) for side in busy)
    history.update(snapshot(20.0, ttft=samples))
    rows = compare(history, TimeRange(0.0, 10.0), TimeRange(10.0, 20.0))
    usage = next(row for row in rows if row.metric.key == "kv_usage")
    assert usage.a.p50 is not None and usage.b.p50 is not None
    assert (usage.level_change is None) == (busy != "AB")
    words = why_not_compared(rows).partition(":")[0]
    assert [name in words for name in "AB"] == [name not in busy for name in "AB"] or busy == "AB"
    assert bool(words) == (busy != "AB")


def test_a_percentage_changes_by_percentage_points() -> None:
    history = MetricStore()
    for second in range(21):
        history.update(snapshot(float(second), num_used=2 if second < 10 else 6))
    samples = tuple(Sample(time, 0.1) for time in (1.0, 11.0))
    history.update(snapshot(20.0, ttft=samples))
    rows = compare(history, TimeRange(0.0, 9.5), TimeRange(10.5, 20.0))
    usage = next(row for row in rows if row.metric.key == "kv_usage")
    before, after, points = (numbers(text)[0] for text in values_of(usage)[:3])
    assert points == pytest.approx(after - before, rel=0.1) and points > 0
    assert values_of(usage)[2].endswith("pt")


def rebuilt(pause_s: float) -> tuple[MetricStore, Mark]:
    """10 tokens a second, 20 after a change at 20 s whose rebuild held the requests for so long;
    every fifth second has half of them."""
    store, resumed = MetricStore(), 20.0 + pause_s
    for second in range(51):
        at = float(second)
        per_second = (10 if at < 20 else 20) // (1 if second % 5 else 2)
        times = [at + (place + 0.5) / per_second for place in range(per_second)]
        kept = [t for t in times if t < 20 or t >= resumed]
        itl = [Sample(t, 1 / per_second) for t in kept]
        if kept and kept[0] >= resumed and kept[0] - 1 < resumed:
            itl[0] = Sample(kept[0], kept[0] - 19.9)  # it began before the change
        is_after = at >= resumed
        config = CONFIG.replace(max_num_seqs=3) if is_after else CONFIG
        since = resumed - 0.1 if is_after else 0.0
        made = replace(snapshot(at + 1, itl=tuple(itl)), config=config, settings_since=since)
        if at < 20 or is_after:
            store.update(made)
    return store, Mark(resumed - 0.1, "change")


@pytest.mark.parametrize("pause_s", [0.0, 3.0, 8.0])
def test_table_and_headline_agree_and_have_no_pause(pause_s: float) -> None:
    store, mark = rebuilt(pause_s)
    a, b = ranges_of(mark, mark, [mark], store, 50.0)
    assert a.end <= 20 and b.start >= 20 + pause_s - 0.1
    verdicts = {verdict.key: verdict for verdict in judge(store, a, b)}
    for row in compare(store, a, b):
        if row.metric.key in verdicts:
            found = verdicts[row.metric.key]
            assert row.levels == (found.before.level, found.after.level)
    assert verdicts["output"].factor == pytest.approx(2, rel=0.05)
    assert [round(x) for x in numbers(pause_text(store, b))] == ([pause_s] if pause_s else [])


def test_an_idle_stretch_is_no_pause() -> None:
    store = fed([], [Sample(2.0, 0.01), Sample(15.0, 0.01)])
    assert store.pause(9.0) == (9.0, 9.0) and store.pause(30.0) == (30.0, 30.0)
