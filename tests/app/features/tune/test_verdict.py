"""What is claimed of a change, and what is not. No Qt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.verdict import (
    FALSE_CLAIMS,
    LEAST,
    WANTED,
    Observed,
    State,
    Verdict,
    busy_text,
    headline,
    p_value,
    size_text,
)
from tests.figures import numbers

VALUES = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(
    lambda found: np.array(found, dtype=float)
)
KEYS = st.sampled_from(["ttft", "itl", "output"])


def observed(values: np.ndarray) -> Observed:
    return Observed(values, float(np.median(values)) if len(values) else None)


def verdict(key: str, before: np.ndarray, after: np.ndarray) -> Verdict:
    return Verdict(key, observed(before), observed(after))


@given(VALUES, VALUES)
def test_the_test_is_a_probability_and_asks_not_which_range_is_first(
    a: np.ndarray, b: np.ndarray
) -> None:
    assert 0 <= p_value(a, b) <= 1
    assert p_value(a, b) == pytest.approx(p_value(b, a))


@given(VALUES, VALUES, st.floats(0.01, 100))
def test_units_do_not_matter(a: np.ndarray, b: np.ndarray, scale: float) -> None:
    assert p_value(a * scale, b * scale) == pytest.approx(p_value(a, b))
    assert p_value(np.sqrt(a), np.sqrt(b)) == pytest.approx(p_value(a, b))  # ranks only


@given(KEYS, VALUES, VALUES)
def test_a_claim_turns_round_with_the_ranges(key: str, a: np.ndarray, b: np.ndarray) -> None:
    there, back = verdict(key, a, b), verdict(key, b, a)
    assert (there.state is State.CHANGED) <= (back.state in (State.CHANGED, State.NO_CHANGE))
    if there.state is back.state is State.CHANGED:
        assert there.factor * back.factor == pytest.approx(1)
        assert there.is_better != back.is_better


@given(KEYS, VALUES)
def test_equal_ranges_are_no_change(key: str, values: np.ndarray) -> None:
    enough = np.resize(values, max(len(values), WANTED))
    assert verdict(key, enough, enough).state is State.NO_CHANGE


@pytest.mark.parametrize(("n", "m"), [(8, 8), (20, 20), (60, 20)])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_equal_distributions_are_rarely_called_changed(n: int, m: int, correlation: float) -> None:
    """At most ten of a thousand: the rate is one of a thousand, more where samples depend on
    each other."""
    rng, claims = np.random.default_rng(25), 0
    for _ in range(1000):
        noise, values = rng.standard_normal(n + m), np.empty(n + m)
        values[0] = noise[0]
        for i in range(1, n + m):
            values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * noise[i]
        claims += p_value(values[:n], values[n:]) < FALSE_CLAIMS
    assert claims <= 10


@given(KEYS, st.integers(20, 60), st.integers(20, 60), st.floats(1.5, 100), st.integers(0, 99))
def test_ranges_far_apart_are_called_changed(
    key: str, n: int, m: int, factor: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.uniform(100, 110, n), factor * rng.uniform(100, 110, m)
    found = verdict(key, before, after)
    assert found.state is State.CHANGED
    assert found.factor == pytest.approx(factor, rel=0.1)
    assert found.is_better == (key == "output")


@given(KEYS, st.integers(0, 60), st.integers(0, 60))
def test_few_samples_claim_nothing_and_say_how_many_are_missing(key: str, n: int, m: int) -> None:
    found = verdict(key, np.full(n, 1.0), np.full(m, 100.0))
    if n < LEAST:
        assert found.state is State.NOTHING_BEFORE and numbers(found.words) == [n, LEAST]
    elif m < LEAST:
        assert found.state is State.TOO_FEW and numbers(found.words) == [m, WANTED]
    else:
        few = [min(n, m)] if key == "ttft" and min(n, m) < WANTED else []
        assert found.state is State.CHANGED and numbers(found.words)[1:] == few


@given(KEYS, st.integers(8, 60), st.integers(8, 60))
def test_no_change_needs_all_the_samples_that_are_wanted(key: str, n: int, m: int) -> None:
    state = verdict(key, np.full(n, 1.0), np.full(m, 1.0)).state
    assert state is (State.TOO_FEW if m < WANTED else State.NO_CHANGE)


@pytest.mark.parametrize(
    ("key", "factor", "words"),
    [
        ("ttft", 50, "50× longer"), ("ttft", 1 / 3, "3× shorter"), ("output", 0.67, "−33 %"),
        ("output", 2.64, "2.6× higher"), ("itl", 1.12, "+12 %"), ("output", 0, "−100 %"),
        ("itl", 1950, "1,950× longer"),
    ],
)  # fmt: skip
def test_sizes_are_factors_or_percent(key: str, factor: float, words: str) -> None:
    assert size_text(key, factor) == words


def test_the_headline_has_what_changed_and_else_why_nothing_is_said() -> None:
    mixed, none = np.random.default_rng(1).permutation(20), np.empty(0)
    low, high = 100 + mixed, 300 + mixed
    changed, same = verdict("ttft", low, high), verdict("itl", low, low)
    assert headline([changed, same]) == ([changed], "")
    assert headline([same]) == ([], "no clear change")
    few = verdict("ttft", low, high[:7])
    words = headline([few, same])[1]
    assert numbers(words) == [7, WANTED] and "TTFT" in words and "ITL" not in words
    both = headline([few, verdict("itl", low, low[:9])])[1]
    assert numbers(both) == [7, WANTED, 9, WANTED] and "ITL" in both
    for before, after in ((none, none), (none, high)):
        claims, words = headline([verdict("ttft", before, after)])
        assert not claims and words


def test_a_busy_machine_is_said() -> None:
    assert busy_text(0.0) == ""
    assert numbers(busy_text(1.42)) == [1.4]
