"""The arithmetic of histograms: against the samples that they were made of."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.metrics_page import added, histogram_of, mean, quantile, since
from engine.telemetry.metrics import HistogramSnapshot

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
SAMPLES = st.lists(st.floats(0.0, 2.0), max_size=60)


def made(samples: list[float], bounds: tuple[float, ...] = BOUNDS) -> HistogramSnapshot:
    counts = [0] * (len(bounds) + 1)
    for sample in samples:
        counts[bisect_left(bounds, sample)] += 1
    return HistogramSnapshot(bounds, tuple(accumulate(counts)), math.fsum(samples))


def bucket_of(value: float) -> tuple[float, float]:
    place = bisect_left(BOUNDS, value)
    low = BOUNDS[place - 1] if place else 0.0
    return low, BOUNDS[min(place, len(BOUNDS) - 1)]


@given(SAMPLES, SAMPLES)
def test_since_takes_away_what_was_there_before(before: list[float], new: list[float]) -> None:
    found = since(made(before + new), made(before))
    assert found.cumulative == made(new).cumulative
    assert found.sum == pytest.approx(math.fsum(new), abs=1e-9)


@given(SAMPLES, SAMPLES)
def test_added_has_the_samples_of_both(one: list[float], other: list[float]) -> None:
    found = added(made(one), made(other))
    assert found.cumulative == made(one + other).cumulative
    assert found.sum == pytest.approx(math.fsum(one + other))


@given(SAMPLES, SAMPLES)
def test_other_bounds_leave_those_that_both_have(one: list[float], other: list[float]) -> None:
    found = added(made(one), made(other, BOUNDS[::2]))
    assert found.buckets == BOUNDS[::2]
    assert found.cumulative == made(one + other, BOUNDS[::2]).cumulative


@given(SAMPLES.filter(bool), st.floats(0.0, 1.0))
def test_a_quantile_falls_into_the_bucket_of_its_sample(samples: list[float], q: float) -> None:
    found = quantile(made(samples), q)
    assert found is not None
    rank = max(math.ceil(q * len(samples)), 1)
    low, high = bucket_of(sorted(samples)[rank - 1])
    assert low - 1e-12 <= found <= high + 1e-12


@given(SAMPLES.filter(bool), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantiles_rise(samples: list[float], p: float, q: float) -> None:
    found = [quantile(made(samples), one) for one in sorted((p, q))]
    assert found[0] is not None and found[1] is not None
    assert found[0] <= found[1] + 1e-12


@given(SAMPLES)
def test_the_mean_is_exact(samples: list[float]) -> None:
    wanted = math.fsum(samples) / len(samples) if samples else None
    assert mean(made(samples)) == (None if wanted is None else pytest.approx(wanted))


def test_samples_are_spread_evenly_over_their_bucket() -> None:
    halves = HistogramSnapshot((0.01, 0.02), (0, 10, 10), 0.15)
    assert quantile(halves, 0.5) == pytest.approx(0.015)
    assert quantile(halves, 1.0) == pytest.approx(0.02)


def test_beyond_the_last_bound_nothing_is_known() -> None:
    assert quantile(HistogramSnapshot((0.01,), (0, 5), 3.0), 0.5) == 0.01


def test_a_server_that_was_started_anew_has_new_samples_only() -> None:
    assert since(made([0.2] * 3), made([0.2] * 9)) == made([0.2] * 3)
    assert since(made([0.2]), None) == made([0.2])


def test_without_samples_there_is_nothing_to_say() -> None:
    assert quantile(made([]), 0.5) is None
    with pytest.raises(ValueError):
        quantile(made([]), 1.5)


def test_it_is_made_of_pairs_in_any_order() -> None:
    pairs = [(math.inf, 5.0), (0.1, 3.0), (0.01, 1.0)]
    assert histogram_of(pairs, 1.0) == HistogramSnapshot((0.01, 0.1), (1, 3, 5), 1.0)
    assert histogram_of(pairs[1:], 1.0) is None  # how many there are in all is not known
    torn = histogram_of([(0.01, 3.0), (0.1, 2.0), (math.inf, 4.0)], 1.0)
    assert torn is not None and torn.cumulative == (3, 3, 4)
