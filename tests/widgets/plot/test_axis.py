"""Value and time axes: what they hold, their ticks and their units."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widgets.plot.axis import (
    Range,
    high_without_outliers,
    labelled_ticks,
    log_range,
    range_for,
    seconds_text,
    shown_unit,
    tick_text,
    ticks,
    time_ticks,
)

finite = st.floats(-1e6, 1e6)
positive = st.floats(1e-3, 1e6)


@given(finite, st.floats(1e-3, 1e6), st.integers(1, 12))
def test_ticks_are_inside_and_not_too_many(low: float, span: float, most: int) -> None:
    shown = Range(low, low + span)
    found = ticks(shown, most)
    assert len(found) <= most + 1
    assert all(shown.low - 1e-6 * span <= t <= shown.high + 1e-6 * span for t in found)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_an_axis_starts_at_zero_and_holds_the_data(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    shown = range_for(low, high, None, from_zero=True)
    assert shown.low == 0
    assert shown.high >= high
    fitted = range_for(low, high, None, from_zero=False)
    assert fitted.low <= low <= high <= fitted.high


def test_an_axis_does_not_breathe() -> None:
    first = range_for(0, 95, None, from_zero=True)
    assert range_for(0, 80, first, from_zero=True) == first
    assert range_for(0, 99, first, from_zero=True) == first
    assert range_for(0, 500, first, from_zero=True).high >= 500  # grows at once
    assert range_for(0, 20, first, from_zero=True).high < 50  # shrinks when mostly empty
    assert range_for(math.inf, -math.inf, first, from_zero=True) == first
    assert range_for(math.inf, -math.inf, None, from_zero=True) == Range(0, 1)


def test_ticks_as_text() -> None:
    assert tick_text(2.5, 2.5) == "2.5"
    assert tick_text(0.25, 0.25) == "0.25"
    assert tick_text(200, 100) == "200"
    assert seconds_text(-90, 30) == "−90 s"
    assert seconds_text(-120, 60) == "−2 min"
    assert seconds_text(0, 30) == "now"
    places, step = time_ticks(-120.0, 0.0, 4)
    assert (places, step) == ([-120.0, -90.0, -60.0, -30.0, 0.0], 30.0)


def test_one_gap_does_not_flatten_an_axis() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(30, 3, 500)
    line = np.full(240, 30.0)
    tail = np.concatenate((np.full(220, 45.0), np.full(20, 14_000.0)))
    samples[200] = 14_000
    groups = [(samples, 0.98), (line, 0.95), (tail, 0.5)]
    assert high_without_outliers(groups) == pytest.approx(45)
    steady = np.full(240, 400.0)  # a tail that stays is no outlier
    assert high_without_outliers([*groups[:2], (steady, 0.5)]) == 400
    assert high_without_outliers([(samples[:7], 0.98)]) == samples[:7].max()  # of few it holds all
    assert high_without_outliers([(samples, 1.0)]) == 14_000
    assert high_without_outliers([(np.empty(0), 1.0)]) == -math.inf


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_what_the_axis_must_hold_is_below_its_end(values: list[float], held: float) -> None:
    found = high_without_outliers([(np.array(values), held), (np.array([np.nan]), 1.0)])
    assert found in values
    assert np.count_nonzero(np.array(values) <= found) >= int(held * len(values))


def test_an_outer_series_does_not_stretch_the_axis() -> None:
    near, far = np.array([20.0, 30.0]), np.array([1000.0])
    assert high_without_outliers([(near, 1.0), (far, 0.0)]) == 30
    assert high_without_outliers([(near, 1.0), (np.array([80.0]), 0.0)]) == 80
    assert high_without_outliers([(far, 0.0)]) == 1000


@given(positive, positive)
def test_a_logarithmic_axis_holds_the_data(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    shown = log_range(low, high, None)
    assert shown.is_log and shown.low > 0 and high <= shown.high * (1 + 1e-9)
    assert shown.low <= max(low, high / 1e6) * (1 + 1e-9)
    assert shown.high / shown.low * (1 + 1e-9) >= 10 and shown.high / shown.low < 1e8
    assert log_range(low, high, shown) == shown


@given(positive, st.floats(0, 6), st.integers(3, 12))
def test_ticks_of_a_logarithmic_axis(least: float, decades: float, most: int) -> None:
    shown = log_range(least, least * 10**decades, None)
    found = labelled_ticks(shown, 30.0 * most, 30.0)
    assert 1 <= len(found) <= most
    assert all(shown.share(value) == pytest.approx(shown.share(value)) for value, _ in found)
    assert all(a < b for (a, _), (b, _) in pairwise(found))
    assert all(float(text.replace(",", "")) == pytest.approx(value) for value, text in found)


def test_nothing_and_zero_on_a_logarithmic_axis() -> None:
    assert log_range(math.inf, 0.0, None) == Range(0.1, 1.0, True)
    assert log_range(math.inf, 0.0, Range(1, 100, True)) == Range(1, 100, True)
    shown = log_range(2.0, 150.0, None)
    drawn = shown.drawn(np.array([0.0, shown.low, 20.0, 1e9, math.nan]))
    assert list(drawn[:2]) == [shown.ends[0]] * 2 and drawn[3] == shown.ends[1]
    assert np.isnan(drawn[4]) and shown.share(0.0) == 0 and shown.share(1e9) == 1
    assert range_for(0.0, 50.0, shown, from_zero=True).low == 0


@given(st.booleans(), positive)
def test_a_value_is_drawn_where_its_share_says(is_log: bool, value: float) -> None:
    shown = Range(0.5, 5e5, is_log)
    low, high = shown.ends
    drawn = float(shown.drawn(np.array([value]))[0])
    assert (drawn - low) / (high - low) == pytest.approx(shown.share(value), abs=1e-9)


def test_a_chart_of_long_durations_is_in_seconds() -> None:
    assert shown_unit("ms", 1000) == ("ms", 1.0)
    unit = shown_unit("ms", 2000)
    assert [unit.text(value) for value in (14_020, 1620, 63)] == ["14.0", "1.62", "0.063"]
    texts = [text for _, text in labelled_ticks(Range(0, 15_000), 150, 30, unit.factor)]
    assert texts == ["0", "5", "10", "15"]
    assert shown_unit("GiB", 5000).name == "GiB"
