"""Confidence intervals of differences against a simulation and Welch's formula."""

from __future__ import annotations

import random
import statistics

import pytest

from app.storage.intervals import (
    WIDE,
    Difference,
    difference_of,
    half_of_difference,
    spread_text,
)


def test_an_interval_contains_the_true_difference_19_times_of_20() -> None:
    rng, hits, count = random.Random(0), 0, 2000
    for _ in range(count):
        before = [rng.gauss(100, 10) for _ in range(3)]
        after = [rng.gauss(90, 1) for _ in range(6)]
        half = half_of_difference(before, after)
        assert half is not None
        hits += abs(statistics.fmean(after) - statistics.fmean(before) + 10) <= half
    assert hits / count >= 0.95


def test_welch_s_example() -> None:
    """Variances of the means 1 and 4 with 2 and 4 degrees of freedom: 5.56 in all, t 2.571."""
    before = [0.0, 3.0**0.5, 2 * 3.0**0.5]
    after = [10 + step for step in (-(40**0.5), 0.0, 0.0, 0.0, 40**0.5)]
    assert statistics.variance(before) / 3 == pytest.approx(1)
    assert statistics.variance(after) / 5 == pytest.approx(4)
    assert 5 <= 25 / (1 / 2 + 16 / 4) < 6
    assert half_of_difference(before, after) == pytest.approx(2.571 * 5**0.5)


def test_one_run_has_a_change_and_no_interval() -> None:
    assert difference_of(10.0, 11.1, [10.0], [11.0, 11.2]) == (pytest.approx(0.11), None)
    assert difference_of(None, 1.0, [], [1.0]) is None and difference_of(0.0, 1.0, [], []) is None
    assert "±" not in str(difference_of(10.0, 11.0, [10.0], [11.0]))
    assert "±" in str(difference_of(10.0, 11.0, [10.0, 10.1], [11.0, 11.2]))
    assert str(Difference(15.0, 12.024)).endswith("±1,202.4")
    assert str(Difference(4.0, 12.024)).endswith(WIDE)  # even the sign is unknown
    assert spread_text(0.03) == "±3 %" and spread_text(1.01) == WIDE and spread_text(None) == ""
    assert half_of_difference([2.0, 2.0], [3.0, 3.0]) == 0.0


def test_a_difference_is_relative_to_the_first() -> None:
    before, after = [10.0, 11.0, 10.5], [20.4, 20.9, 20.6]
    half = half_of_difference(before, after)
    found = difference_of(10.5, 20.6, before, after)
    assert found is not None and found.half is not None and half is not None
    assert found.change == pytest.approx(20.6 / 10.5 - 1)
    assert found.half * 10.5 == pytest.approx(half)
