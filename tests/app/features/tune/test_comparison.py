"""Two ranges as numbers: what is counted, what is left out, and which ranges a mark has. No Qt."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.comparison import (
    BETTER,
    REACH_S,
    Figures,
    TimeRange,
    TuneHistory,
    around,
    as_text,
    change,
    change_text,
    compare,
    in_brief,
    tone,
)
from engine.snapshot import Sample, StepRecord
from engine.snapshot.metrics import METRICS
from tests.figures import numbers
from tests.widgets.synthetic import snapshot
from widgets.plot.series import Mark


def fed(ttft: list[Sample], itl: list[Sample], until: float = 20.0) -> TuneHistory:
    """States every second from 0 on; all samples at once."""
    history = TuneHistory()
    for second in range(int(until) + 1):
        history.update(replace(snapshot(float(second)), ttft=(), itl=()))
    history.update(replace(snapshot(until), ttft=tuple(ttft), itl=tuple(itl)))
    return history


def test_the_figures_of_a_range_are_those_of_its_samples() -> None:
    itl = [Sample(1 + 0.05 * n, 0.010 if n < 100 else 0.030) for n in range(200)]
    history = fed([Sample(1.0, 0.2), Sample(7.0, 0.4)], itl)
    before, after = history.figures(0.0, 5.99), history.figures(5.99, 12.0)
    assert before["itl"] == Figures(100, pytest.approx(10), pytest.approx(10), pytest.approx(10))
    assert after["itl"].p50 == pytest.approx(30) and after["itl"].num_samples == 100
    assert before["ttft"].num_samples == 1 and after["ttft"].p50 == pytest.approx(400)


def test_p99_needs_a_hundred_samples() -> None:
    few, enough = Figures.of(np.arange(99.0)), Figures.of(np.arange(100.0))
    assert few.p99 is None and few.largest == 98 and few.num_samples == 99
    assert enough.p99 is not None and Figures.of(np.empty(0)) == Figures()


def test_every_token_counts_once_in_the_second_in_which_it_came() -> None:
    itl = [Sample(2.0 + n / 40, 0.025) for n in range(1, 100)]
    history = fed([Sample(2.0, 0.1)], itl)
    tokens = history.figures(2.0, 5.0)["output"]
    assert tokens.num_samples == 3  # whole seconds
    assert tokens.p50 == 40 and tokens.largest == 40
    assert history.figures(2.0, 2.9)["output"] == Figures()  # not a whole one


@given(st.lists(st.floats(0.001, 9.999), max_size=60), st.integers(1, 9))
def test_no_token_is_lost_between_two_ranges(times: list[float], cut: int) -> None:
    history = fed([], [Sample(at, 0.01) for at in sorted(times)])
    counted = [history._tokens_per_second(*r).sum() for r in ((0.0, cut), (cut, 10.0))]
    assert sum(counted) == len(times)


def test_blocks_count_also_when_they_were_given_back_before_the_next_state() -> None:
    history = fed([], [], until=2.0)
    step = StepRecord(0, 2.2, 0.1, (), 1, 0, kv_usage=0.4)
    history.update(replace(snapshot(3.0), steps=(step, replace(step, kv_usage=None))))
    usage = history.figures(2.0, 3.0)["kv_usage"]
    assert (usage.num_samples, usage.largest) == (3, pytest.approx(40))
    assert history.figures(0.0, 2.0)["kv_usage"].largest == 0


def test_before_any_state_there_is_nothing() -> None:
    history = TuneHistory()
    assert history.began == math.inf
    assert set(history.figures(0.0, 10.0).values()) == {Figures()}


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
def test_a_change_is_in_percent_of_what_was_before(before: float, after: float) -> None:
    percent = change(before, after)
    assert percent is not None
    assert before * (1 + percent / 100) == pytest.approx(after)


def test_changes_are_written_with_their_sign_and_judged_by_their_metric() -> None:
    assert change(0.0, 3.0) is None and change(None, 3.0) is None and change_text(None) == "–"
    assert [change_text(p) for p in (80.4, -3.44, 0.01, 1198)] == [
        "+80 %", "−3.4 %", "0 %", "+1,198 %",
    ]  # fmt: skip
    assert tone(METRICS["ttft"], 50) == "worse" and tone(METRICS["ttft"], -50) == "better"
    assert tone(METRICS["output"], 50) == "better" and tone(METRICS["kv_usage"], 50) == ""
    assert tone(METRICS["itl"], 1.0) == ""  # too little to be called anything


def test_the_copied_table_has_a_line_a_metric() -> None:
    history = fed([Sample(1.0, 0.1), Sample(11.0, 0.2)], [Sample(1.5, 0.02), Sample(11.5, 0.01)])
    a, b = TimeRange(0.0, 10.0), TimeRange(10.0, 20.0)
    rows = compare(history, a, b)
    lines = as_text(rows, a, b).splitlines()
    assert numbers(lines[0]) == [10, 10] and len(lines) == 2 + len(BETTER)
    assert lines[2].split("\t")[:5] == ["TTFT", "ms", "100", "200", "+100 %"]
    assert "TTFT 100 → 200 ms (+100 %)" in in_brief(rows)
