"""The state machine of a lesson under any order of events. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.workload import usable_token_ids
from app.features.learn.controller import LOOK_MS
from app.features.learn.course import Course, Do, Stage
from app.features.learn.lessons import LESSONS
from app.features.tune.comparison import REACH_S
from app.features.tune.load_plan import why_not
from app.features.tune.verdict import LEAST, LONGEST_S, WANTED, Observed, Verdict, headline
from engine.config import SETTINGS, EngineConfig
from tests.figures import numbers


def verdicts(before: int, after: int, factor: float = 1.0) -> list[Verdict]:
    values = lambda count: 100 + np.random.default_rng(count).permutation(count) / 10
    side = lambda found: Observed(found, float(np.median(found)) if len(found) else None)
    return [
        Verdict(key, side(values(before)), side(factor * values(after)))
        for key in ("ttft", "itl", "output")
    ]


EVENTS: dict[str, Callable[[Course], Sequence[Do]]] = {
    "start": lambda c: c.start(LESSONS[0], LESSONS[0].steps[0]),
    "last": lambda c: c.start(LESSONS[2], LESSONS[2].steps[0]),
    "few": lambda c: c.baseline(verdicts(LEAST - 1, 0)),
    "enough": lambda c: c.baseline(verdicts(LEAST, 0)),
    "pending": lambda c: c.chosen(True),
    "discarded": lambda c: c.chosen(False),
    "applied": lambda c: c.applied(),
    "undecided": lambda c: c.measured(verdicts(LEAST, 3), 1.0),
    "decided": lambda c: c.measured(verdicts(LEAST, WANTED, 5.0), 1.0),
    "late": lambda c: c.measured([], LONGEST_S),
    "cut": lambda c: c.measured([], 1.0, is_over=True),
    "evaluated": lambda c: c.evaluated("Agreement 97 %."),
    "fail": lambda c: c.fail("why"),
    "leave": lambda c: c.leave(),
}


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=40))
def test_whatever_happens_a_load_that_was_started_stops_and_settings_are_put_back(
    names: list[str],
) -> None:
    course = Course()
    loads = changed = evaluations = 0
    for name in [*names, "leave"]:
        for one in EVENTS[name](course):
            loads += (one is Do.START_LOAD) - (one is Do.STOP_LOAD)
            changed += (one is Do.SET_UP) - (one is Do.PUT_BACK)
            evaluations += (one is Do.EVALUATE) - (one is Do.STOP_EVALUATION)
            assert loads in (0, 1) and changed in (0, 1) and evaluations in (0, 1)
        if name == "evaluated":
            evaluations = 0
        assert evaluations == (course.stage is Stage.EVALUATING)
        assert not (evaluations and loads)  # each would slow the other
        assert loads == course.needs_load  # it runs exactly while something is measured
        assert (course.stage is Stage.RESULT) <= bool(course.result)
    assert (loads, changed, course.is_on) == (0, 0, False)


def run(*names: str) -> Course:
    course = Course()
    for name in names:
        EVENTS[name](course)
    return course


@pytest.mark.parametrize(
    ("names", "stage"),
    [
        (("start",), Stage.BASELINE),
        (("start", "few"), Stage.BASELINE),
        (("start", "applied"), Stage.BASELINE),  # too early: nothing to compare with
        (("start", "enough"), Stage.MOVE),
        (("start", "enough", "pending"), Stage.APPLY),
        (("start", "enough", "pending", "discarded"), Stage.MOVE),
        (("start", "enough", "applied"), Stage.MEASURING),
        (("start", "enough", "applied", "undecided"), Stage.MEASURING),
        (("start", "enough", "applied", "decided"), Stage.RESULT),
        (("start", "enough", "applied", "late"), Stage.RESULT),
        (("start", "enough", "fail"), Stage.FAILED),
        (("last", "enough", "applied", "decided"), Stage.EVALUATING),
        (("last", "enough", "applied", "evaluated"), Stage.MEASURING),
        (("last", "enough", "applied", "decided", "evaluated"), Stage.RESULT),
        (("fail",), Stage.OFF),
    ],
)
def test_the_way_through_a_lesson(names: tuple[str, ...], stage: Stage) -> None:
    assert run(*names).stage is stage


def test_the_first_lesson_waits_for_its_own_metric_alone() -> None:
    course = run("start", "enough", "applied")
    ttft, itl, _ = verdicts(LEAST, WANTED, 5.0)
    assert course.measured([ttft, *verdicts(LEAST, 3)[1:]], 1.0)
    assert course.stage is Stage.RESULT and itl.words not in course.result


def test_progress_names_its_unit() -> None:
    course = run("start", "few")
    assert numbers(course.progress) == [LEAST - 1, LEAST] and "requests" in course.progress
    course = Course()
    course.start(LESSONS[2], LESSONS[2].steps[0])
    course.baseline(verdicts(3, 0))
    assert numbers(course.progress) == [3, LEAST] and "seconds" in course.progress


def test_progress_after_the_change_counts_what_a_result_needs() -> None:
    course = run("start", "enough", "applied", "undecided")
    assert numbers(course.progress) == [3, LEAST]  # as in the headline beside
    noisy = np.geomspace(1, 1000, LEAST)
    found = [Verdict("ttft", Observed(noisy, 30.0), Observed(noisy * 1.3, 39.0))]
    course.measured(found, 14.0)
    assert numbers(course.progress) == [14, REACH_S]
    assert course.progress in headline(found, 14.0)[1]


def test_the_sentence_has_what_was_measured_and_nothing_else() -> None:
    course = run("start", "enough", "applied")
    course.measured(verdicts(LEAST, WANTED, 5.0), 1.0, "weights 4 MiB → 1 MiB")
    assert numbers(course.result)[-2:] == [4, 1] and "TTFT" in course.result
    assert "not enough data" in run("start", "enough", "applied", "late").result.lower()


def test_lessons_follow_each_other_and_end() -> None:
    assert run("start").following is LESSONS[1] and run("last").following is None
    assert [run("start").number, run("last").number] == [1, 3]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.key)
def test_a_lesson_sets_settings_that_exist_and_fits_the_demo_model(lesson: Any) -> None:
    for step in lesson.steps:
        assert EngineConfig().replace(**{**step.setup, step.setting: step.value})
        assert step.setup.get(step.setting, SETTINGS[step.setting].default) != step.value
    assert why_not(lesson.plan.workload, EngineConfig(max_model_len=2048), 2048) is None
    stream = lesson.plan.workload.stream("unique", usable_token_ids(99, ()), 0)
    assert len(next(stream).prompt_token_ids) >= lesson.input.low


def test_a_measurement_ends_within_the_range_of_the_headline() -> None:
    assert LONGEST_S + LOOK_MS / 1e3 < REACH_S
