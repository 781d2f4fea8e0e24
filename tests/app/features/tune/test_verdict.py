"""What is claimed of a change, and what is not. No Qt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.doubt import busy_text
from app.features.tune.verdict import (
    LEAST,
    WANTED,
    Observed,
    State,
    Verdict,
    headline,
    size_text,
)
from tests.figures import numbers

VALUES = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(
    lambda found: np.array(found, dtype=float)
)
MEASURED = (State.CHANGED, State.NO_CHANGE, State.UNCERTAIN)
KEYS = st.sampled_from(["ttft", "itl", "output"])


def verdict(key: str, *ranges: np.ndarray) -> Verdict:
    level = np.mean if key == "output" else np.median
    sides = (Observed(x, float(level(x)) if len(x) else None) for x in ranges)
    return Verdict(key, *sides)


@given(KEYS, VALUES, VALUES, st.floats(0.01, 100))
def test_units_do_not_matter(key: str, a: np.ndarray, b: np.ndarray, scale: float) -> None:
    one, other = verdict(key, a, b), verdict(key, a * scale, b * scale)
    assert one.factor == pytest.approx(other.factor)
    if one.state is other.state is State.UNCERTAIN:
        assert one.noise == pytest.approx(other.noise)


@given(KEYS, VALUES, VALUES)
def test_a_claim_turns_round_with_the_ranges(key: str, a: np.ndarray, b: np.ndarray) -> None:
    there, back = verdict(key, a, b), verdict(key, b, a)
    assert (there.state is State.CHANGED) <= (back.state in MEASURED)
    if there.state is back.state is State.CHANGED:
        assert there.factor * back.factor == pytest.approx(1)
        assert there.is_better != back.is_better


@given(KEYS, VALUES)
def test_equal_ranges_did_not_change(key: str, values: np.ndarray) -> None:
    enough = np.resize(values, max(len(values), LEAST))
    assert verdict(key, enough, enough).state in (State.NO_CHANGE, State.UNCERTAIN)


def correlated(n: int, correlation: float, seed: int, runs: int = 600) -> np.ndarray:
    """Runs of AR(1) noise of deviation 1, one a row."""
    noise = np.random.default_rng(seed).standard_normal((n, runs))
    values = noise.copy()
    for before, now, new in zip(values, values[1:], noise[1:], strict=False):
        now[:] = correlation * before + math.sqrt(1 - correlation**2) * new
    return values.T


def share(state: State, before: int, after: int, correlation: float, factor: float) -> float:
    """Of runs whose throughput changed by `factor` that are found to be `state`."""
    runs = 1 + 0.15 * correlated(before + after, correlation, seed=25)
    found = [
        verdict("output", run[:before], run[before:])
        for run in (np.maximum(runs, 0.1) * np.where(np.arange(before + after) < before, 1, factor))
    ]  # fmt: skip
    return float(np.mean([one.state is state for one in found]))


@pytest.mark.parametrize(("before", "after"), [(12, 25), (52, 25), (60, 60)])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_of_hundred_unchanged_runs_at_most_one_is_called_changed(
    before: int, after: int, correlation: float
) -> None:
    assert share(State.CHANGED, before, after, correlation, 1.0) <= 0.01


@pytest.mark.parametrize(
    ("after", "factor", "correlation", "least"),
    [(25, 0.7, 0.0, 0.98), (25, 0.7, 0.5, 0.8), (25, 0.55, 0.5, 0.98), (60, 0.7, 0.5, 0.98)],
)
def test_a_large_change_of_noisy_throughput_is_found(
    after: int, factor: float, correlation: float, least: float
) -> None:
    assert share(State.CHANGED, 52, after, correlation, factor) >= least


def test_no_change_is_claimed_of_quiet_ranges_alone() -> None:
    rng = np.random.default_rng(1)
    before, after = (rng.normal(100, 1, 60) for _ in range(2))
    assert verdict("output", before, after).state is State.NO_CHANGE
    assert share(State.NO_CHANGE, 60, 60, 0.5, 0.9) <= 0.05
    assert share(State.NO_CHANGE, 12, 25, 0.5, 1.0) <= 0.2  # too noisy to know


@given(KEYS, st.integers(12, 60), st.integers(12, 60))
def test_growing_latency_is_called_changed(key: str, n: int, m: int) -> None:
    """A queue that grows depends on its past, and is a change all the same."""
    found = verdict(key, np.resize([100.0, 104.0], n), np.geomspace(200, 3000, m))
    assert found.state is State.CHANGED


@given(KEYS, st.integers(12, 60), st.integers(12, 60), st.floats(1.5, 100), st.integers(0, 99))
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
        assert found.state is State.TOO_FEW and numbers(found.words) == [m, LEAST]
    else:
        few = [min(n, m)] if key == "ttft" and min(n, m) < WANTED else []
        assert found.state is State.CHANGED
        assert numbers(found.words) == [*([50] if key != "output" else []), 1, 100, 100, *few]


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
    mixed, none = np.random.default_rng(1).permutation(20) / 10, np.empty(0)
    low, high = 100 + mixed, 300 + mixed
    noisy = 100 * np.repeat([1.0, 3.0, 2.0, 1.0, 3.0], 4)
    changed, same = verdict("ttft", low, high), verdict("itl", low, low)
    unclear = verdict("output", low, noisy)
    assert headline([changed, same], 20) == ([changed], "")
    assert headline([changed, same, unclear], 20) == ([changed], unclear.words)
    assert headline([same], 20)[1].startswith("no clear change")
    few = verdict("ttft", low, high[:7])
    words = headline([few, same], 7)[1]
    assert numbers(words) == [7, LEAST] and "TTFT" in words and "ITL" not in words
    both = headline([few, verdict("itl", low, low[:9])], 9)[1]
    assert numbers(both) == [7, LEAST, 9, LEAST] and "ITL" in both
    assert unclear.state is State.UNCERTAIN
    assert numbers(headline([same, unclear], 20)[1])[-2:] == [20, 60]
    assert numbers(headline([same, unclear], 60)[1])[-1:] == [60]
    early = [verdict("ttft", low[:4], high), verdict("itl", low[:9], low)]
    assert numbers(headline(early, 20)[1]) == [4, LEAST, 9, LEAST]  # there was a load before
    for before, after in ((none, none), (none, high)):
        claims, words = headline([verdict("ttft", before, after)], 20)
        assert not claims and words


def test_a_busy_machine_is_said() -> None:
    assert busy_text(0.0) == ""
    assert numbers(busy_text(1.42)) == [1.4]


def test_a_stall_of_some_seconds_does_not_hide_a_large_change() -> None:
    before, after = 100 + np.arange(52.0), 600 + np.arange(40.0)
    before[:9] = 0
    found = verdict("output", before, after)
    assert found.state is State.CHANGED and found.factor > 5
