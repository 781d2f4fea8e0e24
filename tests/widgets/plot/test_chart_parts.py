"""The parts of the charts that know no Qt: history, decimation, labels, axes, percentiles."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.units import duration_text, figure, number
from widgets.plot.data import as_steps, decimate, pick_states, thin_samples
from widgets.plot.labels import spread
from widgets.plot.series import (
    RingBuffer,
)

finite = st.floats(-1e6, 1e6)


# Ring buffer ----------------------------------------------------------------------------------


@given(st.integers(1, 20), st.lists(st.integers(1, 50), max_size=30))
def test_a_ring_keeps_exactly_the_newest(capacity: int, batches: list[int]) -> None:
    ring, everything = RingBuffer(capacity), []
    for size in batches:
        new = [float(len(everything) + i) for i in range(size)]
        everything += new
        if size == 1:
            ring.append(new[0], -new[0])
        else:
            ring.extend(new, [-value for value in new])
        assert ring.times.tolist() == everything[-capacity:]
        assert ring.values.tolist() == [-value for value in everything[-capacity:]]


def test_a_ring_is_bounded_after_100_000_appends() -> None:
    ring = RingBuffer(1000)
    size = ring._data.nbytes
    for i in range(100_000):
        ring.append(i, i)
    assert len(ring) == 1000
    assert ring._data.nbytes == size
    assert ring.last() == (99_999.0, 99_999.0)


def test_reading_a_ring() -> None:
    ring = RingBuffer(10)
    ring.extend([0.0, 1.0, 2.0, 3.0], [5.0, 6.0, math.nan, 8.0])
    assert ring.since(1.5)[0].tolist() == [1.0, 2.0, 3.0]  # from the point before the edge
    assert ring.between(0.0, 1.0).tolist() == [6.0]
    assert ring.nearest(0.4) == (0.0, 5.0)
    assert ring.nearest(0.6) == (1.0, 6.0)
    assert ring.nearest(2.1) is None  # a gap has no value
    assert ring.at(1.9) == (1.0, 6.0)
    assert ring.at(-1.0) is None
    ring.drop_before(2.5)
    assert ring.times.tolist() == [3.0]
    with pytest.raises(ValueError, match="capacity"):
        RingBuffer(0)


# Decimation -----------------------------------------------------------------------------------


@given(st.integers(2, 5000), st.integers(0, 2**32 - 1))
def test_decimation_bounds_the_points_and_keeps_the_extremes(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(1000, 1120, count))
    values = rng.normal(size=count)
    t, v = decimate(times, values, 120.0, 600)
    assert len(t) == len(v) <= max(602, min(count, 600))
    assert v.min() == values.min()
    assert v.max() == values.max()
    assert np.all(np.diff(t) >= 0)


def test_decimation_does_not_shimmer() -> None:
    times = np.arange(0, 240, 0.01)
    values = np.sin(times) + np.random.default_rng(0).normal(size=len(times))
    one = dict(zip(*decimate(times[:12000], values[:12000], 120.0, 200), strict=True))
    other = dict(zip(*decimate(times[137:12137], values[137:12137], 120.0, 200), strict=True))
    inner = [t for t in one if 5 < t < 115]
    assert inner
    assert all(other[t] == one[t] for t in inner)


def test_a_gap_survives_decimation() -> None:
    times = np.arange(0, 120, 0.01)
    values = np.where((times > 50) & (times < 60), np.nan, 1.0)
    t, v = decimate(times, values, 120.0, 600)
    assert np.isnan(v[(t > 51) & (t < 59)]).all()
    assert np.isfinite(v[(t < 49) | (t > 61)]).all()


@given(st.integers(1, 20_000), st.integers(0, 10_000))
def test_thinned_samples_are_bounded_and_keep_the_largest(count: int, first: int) -> None:
    rng = np.random.default_rng(count)
    times, values = np.sort(rng.uniform(0, 120, count)), rng.random(count)
    t, v = thin_samples(times, values, first, 120.0, 600)
    assert len(t) <= 605
    assert v.max() == values.max()
    assert set(v.tolist()) <= set(values.tolist())


def test_equal_samples_are_thinned_too() -> None:
    t, _ = thin_samples(np.linspace(0, 120, 5000), np.ones(5000), 0, 120.0, 600)
    assert len(t) <= 605


def test_the_same_samples_stay_chosen_as_time_goes_on() -> None:
    times, values = np.linspace(0, 120, 4000), np.random.default_rng(0).random(4000)
    t1, _ = thin_samples(times[:3800], values[:3800], 0, 120.0, 600)
    t2, _ = thin_samples(times[100:3900], values[100:3900], 100, 120.0, 600)
    inner = set(t1[(t1 > 10) & (t1 < 110)].tolist())
    assert len(inner & set(t2.tolist())) >= 0.99 * len(inner)


def test_states_of_a_stack_keep_common_times() -> None:
    chosen = pick_states(np.arange(0, 120, 0.01), 120.0, 300)
    assert len(chosen) <= 302
    assert chosen[0] == 0 and chosen[-1] == 11_999


def test_steps_have_no_slopes() -> None:
    t, v = as_steps(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 1.0, 4.0, 4.0]))
    assert list(zip(t, v, strict=True)) == [(0, 1), (2, 1), (2, 4), (3, 4)]
    slopes = (np.diff(t) > 0) & (np.diff(v) != 0)
    assert not slopes.any()


# Labels ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(-50, 250), max_size=8))
def test_labels_never_overlap_and_never_leave_the_plot(wanted: list[float]) -> None:
    height, low, high = 14.0, 0.0, 200.0
    placed = spread(wanted, height, low, high)
    assert len(placed) == len(wanted)
    in_order = sorted(placed)
    assert all(b - a >= height - 1e-6 for a, b in itertools.pairwise(in_order))
    assert all(low + height / 2 - 1e-6 <= p <= high - height / 2 + 1e-6 for p in placed)
    by_wish = [p for _, p in sorted(zip(wanted, placed, strict=True), key=lambda pair: pair[0])]
    assert by_wish == sorted(by_wish)


def test_labels_with_room_stand_where_they_want() -> None:
    assert spread([50.0, 100.0, 20.0], 14.0, 0.0, 200.0) == [50.0, 100.0, 20.0]
    assert spread([100.0, 100.0], 14.0, 0.0, 200.0) == [93.0, 107.0]
    assert spread([], 14.0, 0.0, 200.0) == []


def test_numbers_as_text() -> None:
    assert number(-1234.5, 1) == "−1,234.5"
    assert number(-0.04, 1) == "0.0"
    assert number(math.nan, 1) == "–"
    assert (figure(7.42), figure(31.4), figure(1204.2), figure(0.0)) == ("7.4", "31", "1,204", "0")
    assert (duration_text(30), duration_text(120), duration_text(3600)) == ("30 s", "2 min", "1 h")
