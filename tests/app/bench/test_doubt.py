"""How far the answer of a sweep can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.bench.doubt import (
    beyond_text,
    busy_sentence,
    late_text,
    reached,
    runs_text,
    tied_text,
    uncertain_text,
    unreached_text,
)
from app.bench.goals import Goals
from app.bench.ranking import Objective
from app.bench.record import BenchResult, answer
from app.bench.report import other_cores
from app.bench.sweep import Point
from app.storage.run_records import State
from tests.figures import numbers


def point(
    limit: int, *itl: float, most: int = 8, rates: Sequence[float] = (), **more: Any
) -> Point:
    """`itl`, `rates`: of each run; `most`: requests that ran at once."""
    level = {"p50": sum(itl) / len(itl), "p99": None, "max": max(itl)} if itl else {}
    figures = {
        "completed": 4, "failed": 0, "duration_s": 1.0,
        "output_tokens_per_s": sum(rates) / len(rates) if rates else 10.0 * limit,
        "itl_ms": level, "max_concurrent_requests": most,
    }  # fmt: skip
    rounds = [
        {"itl_ms": {"p50": one, "p99": None, "max": one}, "output_tokens_per_s": rate}
        for one, rate in zip(itl, rates or [10.0 * limit] * len(itl), strict=True)
    ]
    return Point({"max_num_seqs": limit}, rounds, figures if itl else {}, **more)


def test_a_sweep_that_has_not_run_whole_has_its_number_of_runs() -> None:
    points = [point(1, 10.0, 10.0), point(2, 20.0), point(4)]
    assert numbers(runs_text(points, 3, State.RUNNING)) == [3, 9]
    assert numbers(runs_text(points, 3, State.STOPPED)) == [3, 9]
    assert runs_text(points, 3, State.DONE) == ""
    failed = [*points, point(8, error="Gone.")]  # is not run again
    assert numbers(runs_text(failed, 3, State.RUNNING)) == [3, 9]
    assert numbers(runs_text(points[:1], 1, State.RUNNING)) == [2]  # a search: no total


@pytest.mark.parametrize(("itl", "gap"), [
    ({1: 10.0, 4: 20.0, 16: 60.0}, [4, 16]),
    ({1: 10.0, 4: 20.0}, [4]),  # the largest value
    ({4: 20.0, 5: 60.0}, []),
    ({4: 60.0, 8: 70.0}, []),  # no goal is met
])  # fmt: skip
def test_values_that_were_not_measured_are_named(itl: dict[int, float], gap: list[int]) -> None:
    points = tuple(point(limit, level, most=64) for limit, level in itl.items())
    goals = Goals(itl=50, percentile=50)
    result = BenchResult("m", "BF16", "Chat", points, goals)
    best = result.best
    assert numbers(beyond_text(best, points, goals) if best else "") == gap
    said = beyond_text(best, points, goals) if best else ""
    assert said in result.answer
    stopped = replace(result, state=State.STOPPED).answer
    assert not said or said not in stopped


def test_limits_that_are_still_to_be_measured_are_not_called_unreached() -> None:
    points = (point(2, 10.0, most=2), point(4, 20.0, most=4), point(8), point(16))
    result = BenchResult("m", "BF16", "Chat", points, Goals(itl=50), State.RUNNING)
    whole = (*points[:2], point(8, 20.0, most=4), point(16, 20.0, most=4))
    said = unreached_text(whole)
    assert said and said in replace(result, points=whole, state=State.DONE).answer
    assert said not in result.answer


def test_values_without_an_order_and_at_their_end_have_none_beside_them() -> None:
    goals, best = Goals(itl=50, percentile=50), point(4, 20.0)
    auto = replace(point(1, 20.0), settings={"max_num_seqs": None})
    assert numbers(beyond_text(best, [auto, best, point(16, error="Out of memory.")], goals)) == [
        4, 16
    ]  # fmt: skip
    assert beyond_text(auto, [auto, best], goals) == ""
    most = replace(best, settings={"num_speculative_tokens": 16})
    assert beyond_text(most, [most], goals) == ""
    assert beyond_text(replace(best, settings={}), [], goals) == ""


@pytest.mark.parametrize(
    ("itl", "is_certain"),
    [
        ((48.0, 50.0, 46.0), False),
        ((40.0, 40.1, 39.9), True),
        ((48.0,), True),
        ((60.0, 80.0), True),
    ],
)
def test_a_goal_within_the_interval_is_not_certain(
    itl: tuple[float, ...], is_certain: bool
) -> None:
    """One run has no interval; what misses its goal is not doubted."""
    text = uncertain_text(point(4, *itl), Goals(itl=50, percentile=50))
    assert (text == "") is is_certain
    if not is_certain:
        assert numbers(text)[-2:] == pytest.approx([48, 4.97], abs=0.05)


def test_limits_that_no_batch_came_up_to() -> None:
    points = [point(1, 10.0, most=1), point(8, 20.0), point(16, 21.0), point(32, 20.0)]
    assert numbers(unreached_text(points)) == [8]
    assert unreached_text(points[:2]) == "" and reached(points) == points[:2]
    between = [point(4, 10.0, most=4), point(12, 20.0, most=9), point(16, 20.0, most=9)]
    assert reached(between) == between[:2]  # 12 was not reached either; nothing was lower
    other = Point({"concurrency": 4}, [{}], {"max_concurrent_requests": 4})
    assert unreached_text([other]) == "" and reached([other]) == [other]
    goals = Goals(itl=50, percentile=50)
    assert BenchResult("tiny", "BF16", "work", tuple(points), goals).best is points[1]


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([[95.0, 115.0, 105.0], [20.0, 21.0, 19.0]], 1),
        ([[95.0, 115.0], [96.0, 114.0], [94.0, 116.0], [93.0, 117.0]], 2),
        ([[105.0]], 0),
    ],
)
def test_points_that_may_be_as_fast_are_named(others: list[list[float]], named: int) -> None:
    """One run has no interval; what misses the goals is no rival."""
    best = point(1, 10.0, 10.0, 10.0, rates=[100.0, 120.0, 110.0])
    rivals = [point(n, *[10.0] * len(one), rates=one) for n, one in enumerate(others, 2)]
    missing = point(9, 60.0, 60.0, rates=[100.0, 121.0])
    goals = Goals(itl=50, percentile=50)
    text = tied_text(best, [best, *rivals, missing], goals, Objective.THROUGHPUT)
    expected = [*range(2, 2 + named)] + ([len(others) - named] if len(others) > 2 else [])
    assert numbers(text) == expected
    assert tied_text(best, [best, *rivals], goals, Objective.MEMORY) == ""


def test_the_answer_of_a_result_has_them_all() -> None:
    points, goals = (point(4, 48.0, 50.0, 46.0), point(16, 60.0)), Goals(itl=50, percentile=50)
    made = BenchResult("tiny", "BF16", "work", points, goals, State.STOPPED, rounds=3)
    assert made.answer.startswith(answer(points, goals))
    extra = made.answer.removeprefix(answer(points, goals))
    assert all(text in extra for text in (
        uncertain_text(points[0], goals), unreached_text(points),
        runs_text(points, 3, State.STOPPED),
    ))  # fmt: skip
    aimless = BenchResult("tiny", "BF16", "work", points, Goals(), State.STOPPED, rounds=3)
    assert aimless.answer == answer(points, Goals())


def test_beside_an_uncertain_answer_stands_the_best_certain_one() -> None:
    goals = Goals(itl=50, percentile=50)
    points = point(1, 10.0, 10.1), point(2, 20.0, 20.1), point(4, 48.0, 50.0), point(8, 60.0, 61.0)
    made = BenchResult("tiny", "BF16", "work", points, goals)
    assert made.best is points[2] and points[1].label in made.answer
    assert "95 %" not in BenchResult("tiny", "BF16", "work", points[:2], goals).answer


def test_a_client_that_waited_for_a_core_is_doubted() -> None:
    points = [point(1, 10.0), point(8, 20.0)]
    assert late_text([one.figures for one in points]) == ""
    points[0].figures["client_core_wait"] = None  # of an engine in this process
    points[1].figures["client_core_wait"] = 0.97
    text = late_text([one.figures for one in points])
    assert numbers(text) == [97]
    for goals in (Goals(), Goals(itl=50, percentile=50)):
        assert text in BenchResult("m", "", "", tuple(points), goals).answer


def test_a_busy_machine_is_named_with_the_answer() -> None:
    points = [point(1, 10.0), point(8, 20.0)]
    assert busy_sentence([one.figures for one in points]) == ""
    points[0].figures["other_cores"], points[1].figures["other_cores"] = None, 1.42
    text = busy_sentence([one.figures for one in points])
    assert numbers(text) == [1.4]
    for goals in (Goals(), Goals(itl=50, percentile=50)):
        made = BenchResult("m", "", "", tuple(points), goals)
        assert text in made.answer


@pytest.mark.parametrize(("taken", "cores"), [([], None), ([0, 0, 0, 2], 0), ([0, 1, 2], 1.5)])
def test_other_programs_count_where_they_often_took_cores(
    taken: list[float], cores: float | None
) -> None:
    assert other_cores(taken) == cores
