"""The number of threads that is found by trying."""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.hardware.step_threads import (
    AS_FAST,
    COST,
    FASTER,
    LONGEST_PAUSE_S,
    Search,
    Trial,
    counts,
)

Duration = Callable[[int], float]


class Runs:
    """Steps of one kind, whose durations depend on the number of threads."""

    def __init__(self, most: int, place: int | None = None) -> None:
        sizes = counts(most)
        self.search = Search(sizes, len(sizes) - 1 if place is None else place)
        self.most, self.now = most, 0.0
        self.used: list[int] = []

    def run(self, steps: int, duration: Duration) -> list[int]:
        """The numbers of threads of these steps."""
        begin = len(self.used)
        for _ in range(steps):
            count = self.search.count(self.now, self.most)
            seconds = duration(count)
            self.now += seconds
            self.search.learn(count, seconds, self.now)
            self.used.append(count)
        return self.used[begin:]


def even(times: dict[int, float]) -> Duration:
    return times.__getitem__


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)),
     (16, (1, 2, 4, 8, 16)), (0, (0,))],
)  # fmt: skip
def test_the_counts_that_are_tried(most: int, expected: tuple[int, ...]) -> None:
    assert counts(most) == expected


@pytest.mark.parametrize("usual", [0.002, 0.05])
@pytest.mark.parametrize("best", [1, 2, 4, 8])
def test_the_fastest_count_is_found_from_either_end(best: int, usual: float) -> None:
    sizes = counts(8)
    times = {n: usual * 1.5 ** abs(sizes.index(n) - sizes.index(best)) for n in sizes}
    for place in (0, 3):
        runs = Runs(8, place)
        runs.run(4_000, even(times))
        assert runs.search.best == best
        assert runs.run(400, even(times)).count(best) > 300


def test_of_equally_fast_counts_the_fewest_threads_are_taken() -> None:
    runs = Runs(8)
    runs.run(300, even({1: 0.004, 2: 0.002, 4: 0.002, 8: 0.002}))
    assert runs.search.best == 2


def test_fewer_threads_that_are_slower_are_not_taken_and_more_that_gain_nothing_neither() -> None:
    runs = Runs(2)
    runs.run(3_000, even({1: 0.002 * AS_FAST * 1.02, 2: 0.002}))
    assert runs.search.best == 2
    runs = Runs(2, 0)
    runs.run(3_000, even({1: 0.002, 2: 0.002 * FASTER * 1.02}))
    assert runs.search.best == 1


def test_one_stray_interruption_decides_nothing() -> None:
    rare = iter([0.150])

    def with_one(count: int) -> float:
        return next(rare, 0.002) if count == 2 and runs.now > 0.012 else {1: 0.003, 2: 0.002}[count]

    runs = Runs(2)
    runs.run(200, with_one)
    assert runs.search.best == 2


def test_interruptions_that_are_the_rule_count() -> None:
    """Two threads on two cores beside a busy program: every few steps one stands still."""
    draw = random.Random(1)

    def beside(count: int) -> float:
        return 0.003 if count == 1 else draw.choice([0.002, 0.002, 0.008, 0.030])

    runs = Runs(2)
    runs.run(300, beside)
    assert runs.search.best == 1


def test_what_has_changed_is_noticed_soon_and_both_ways() -> None:
    idle = even({1: 0.010, 2: 0.006})
    crowded = even({1: 0.011, 2: 0.050})
    runs = Runs(2)
    runs.run(20_000, idle)  # long enough for trials to have become rare
    assert runs.search.best == 2
    began = runs.now
    while runs.search.best == 2:
        runs.run(1, crowded)
    assert runs.now - began < 30
    began = runs.now
    while runs.search.best == 1:
        runs.run(1, idle)
    assert runs.now - began < 120


@given(st.floats(1.05, 4), st.floats(1.05, 4), st.floats(0.001, 0.2), st.integers(0, 2))
def test_trials_cost_little(fewer: float, more: float, usual: float, place: int) -> None:
    """All that is lost by trying, over the time of the steps, once the best count is taken."""
    times = {1: usual * fewer, 2: usual, 4: usual * more}
    runs = Runs(4, place)
    runs.run(200, even(times))
    if runs.search.best != 2:
        return  # 5 % more than the best is not always worth a change
    began, index = runs.now, len(runs.used)
    runs.run(3_000, even(times))
    lost = sum(times[count] - usual for count in runs.used[index:])
    assert lost <= (runs.now - began) / COST + 8 * usual * (max(fewer, more) - 1) * 2


def test_a_server_that_computes_alike_for_days_goes_on_with_trials() -> None:
    runs = Runs(2)
    times = {1: 0.010, 2: 0.006}
    runs.run(100, even(times))
    for _ in range(200):
        runs.now += LONGEST_PAUSE_S
        assert 1 in runs.run(500, even(times)), "there is a trial after each pause"
    assert runs.search.best == 2


def test_pauses_between_replies_pay_for_no_trials() -> None:
    runs = Runs(2)
    times = {1: 0.030, 2: 0.018}
    for _ in range(100):
        runs.run(64, even(times))
        runs.now += 2 * LONGEST_PAUSE_S
    slow = runs.used.count(1) * (times[1] - times[2])
    one_trial = 4 * (times[1] - times[2])
    assert one_trial <= slow <= 100 * 64 * times[2] / COST + one_trial


def test_a_trial_takes_turns_and_does_not_count_the_step_after_a_change() -> None:
    trial = Trial(2, 1, is_short=True)
    turns = []
    while not trial.is_over:
        turns.append(trial.count)
        is_first = len(turns) == 1 or turns[-2] != turns[-1]
        trial.add(9.0 if is_first else {1: 0.5, 2: 1.0}[turns[-1]])
    assert turns == [2] * 6 + [1] * 12 + [2] * 6
    assert trial.ratio == pytest.approx(0.5)
    assert trial.cost_s == 0


def test_no_more_threads_than_allowed_and_a_trial_ends_with_that() -> None:
    runs = Runs(4)
    runs.run(20, even({1: 0.1, 2: 0.06, 4: 0.03}))
    search = runs.search
    for _ in range(50):
        assert search.count(runs.now, 1) == 1
        search.learn(1, 5.0, runs.now)
    assert search.best == 4, "what was computed with fewer than allowed says nothing of it"
    assert search.count(runs.now, 4) == 4


@pytest.mark.parametrize(("fewer", "found"), [(0.010, 4), (0.020, 7)])
def test_beside_a_program_that_keeps_a_core_fewer_are_tried_too(fewer: float, found: int) -> None:
    """What is left is none of the counts, and less than where the search begins."""
    runs = Runs(8)
    runs.most = 7
    times = even({1: 0.08, 2: 0.04, 4: fewer, 7: 0.010, 8: 0.009})
    runs.run(300, times)
    assert runs.run(400, times).count(found) > 300
    runs.most = 8
    runs.run(10_000, times)
    assert runs.search.best == 8, "with all cores free again"


def test_a_trial_does_not_go_on_after_a_pause() -> None:
    """A reply ends in the middle of one; in the next, an hour later, all steps are slower."""
    runs = Runs(2)
    before, after = {1: 0.004, 2: 0.003}, {1: 0.008, 2: 0.006}
    while 1 not in runs.run(1, even(before)):
        pass
    runs.run(2, even(before))
    runs.now += 3600
    used = runs.run(12, even(after))
    assert used[0] == 2, "it begins anew, with what is taken for best"
    runs.run(200, even(after))
    assert runs.search.best == 2
