"""The figures of a range of time are those of its samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import Sample, StepRecord
from tests.widgets.live.test_metric_store import at
from widgets.live.metric_store import MetricStore
from widgets.live.statistics import Figures


def over(ttft: list[Sample], itl: list[Sample], until: float = 20.0) -> MetricStore:
    """States every second from 0 on; all samples at once."""
    store = MetricStore()
    for second in range(int(until) + 1):
        store.update(at(float(second), since=-1e3))
    store.update(replace(at(until, since=-1e3), ttft=tuple(ttft), itl=tuple(itl)))
    return store


def test_the_figures_of_a_range_are_those_of_its_samples() -> None:
    itl = [Sample(1 + 0.05 * n, 0.010 if n < 100 else 0.030) for n in range(200)]
    store = over([Sample(1.0, 0.2), Sample(7.0, 0.4)], itl)
    before, after = store.figures(0.0, 5.99), store.figures(5.99, 12.0)
    assert before["itl"] == Figures(100, pytest.approx(10), pytest.approx(10), pytest.approx(10))
    assert after["itl"].p50 == pytest.approx(30) and after["itl"].num_samples == 100
    assert before["ttft"].num_samples == 1 and after["ttft"].p50 == pytest.approx(400)


def test_every_token_counts_once_in_the_second_in_which_it_came() -> None:
    itl = [Sample(2.0 + n / 40, 0.025) for n in range(1, 100)]
    store = over([Sample(2.0, 0.1)], itl)
    tokens = store.figures(2.0, 5.0)["output"]
    assert tokens.num_samples == 3  # whole seconds
    assert tokens.p50 == 40 and tokens.largest == 40
    assert store.figures(2.0, 2.9)["output"] == Figures()  # not a whole one


@given(st.lists(st.floats(0.001, 9.999), max_size=60), st.integers(1, 9))
def test_no_token_is_lost_between_two_ranges(times: list[float], cut: int) -> None:
    store = over([], [Sample(at, 0.01) for at in sorted(times)])
    counted = [store._tokens_per_second(*r).sum() for r in ((0.0, cut), (cut, 10.0))]
    assert sum(counted) == len(times)


def test_blocks_count_also_when_they_were_given_back_before_the_next_state() -> None:
    store = over([], [], until=2.0)
    step = StepRecord(0, 2.2, 0.1, (), 1, 0, kv_usage=0.4)
    store.update(replace(at(3.0, since=-1e3), steps=(step, replace(step, kv_usage=None))))
    usage = store.figures(2.0, 3.0)["kv_usage"]
    assert (usage.num_samples, usage.largest) == (3, pytest.approx(40))
    assert store.figures(0.0, 2.0)["kv_usage"].largest == 0


# The header -----------------------------------------------------------------------------------
