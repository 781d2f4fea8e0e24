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
    tone,
    values_of,
    why_not_compared,
)
from engine.snapshot import Sample
from engine.snapshot.metrics import METRICS
from tests.figures import numbers
from tests.widgets.synthetic import snapshot
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
    assert (usage.p50_change is None) == (busy != "AB")
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
