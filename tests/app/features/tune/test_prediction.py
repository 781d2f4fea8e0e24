"""The pause and memory predicted for a change. No Qt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.prediction import PauseModel, memory_words
from engine.config import Change
from engine.snapshot import MemoryPlan, RequestSnapshot, RequestState, RequestTimes, StepRecord
from engine.snapshot.steps import StepEntry
from tests.figures import numbers
from tests.widgets.synthetic import snapshot

STEPS = st.lists(st.tuples(st.integers(1, 512), st.floats(0.001, 2.0)), min_size=1, max_size=8)


def step(tokens: int, seconds: float, kind: str = "prefill") -> StepRecord:
    entry = StepEntry("a", kind, tokens)
    return StepRecord(0, 1.0, seconds, (entry,), 1, 0)


def running(tokens: int, state: RequestState = RequestState.RUNNING) -> RequestSnapshot:
    return RequestSnapshot("a", state, tokens, 0, tokens, 0, 1, 0, RequestTimes(0.0))


def learnt(*steps: StepRecord, requests: tuple[RequestSnapshot, ...] = ()) -> PauseModel:
    model = PauseModel()
    model.update(replace(snapshot(1.0), steps=steps, requests=requests))
    return model


@given(STEPS)
def test_the_prefill_rate_is_all_tokens_over_all_seconds(steps: list[tuple[int, float]]) -> None:
    model = learnt(*(step(*one) for one in steps), step(3, 9.0, "decode"))
    tokens, seconds = (sum(values) for values in zip(*steps, strict=True))
    assert model.prefill_rate == pytest.approx(tokens / seconds)


@given(st.integers(1, 5000), st.floats(0.01, 60), st.floats(0.01, 60))
def test_a_pause_is_the_rebuild_or_reload_and_the_tokens_again(
    tokens: int, rebuild: float, reload: float
) -> None:
    waiting = running(99, RequestState.WAITING)
    model = learnt(step(100, 0.5), requests=(running(tokens), waiting))
    model.learn_rebuild(rebuild)
    for change, own in ((Change.CACHE_REBUILD, rebuild), (Change.RELOAD, reload)):
        pause = model.predict(change, reload)
        assert pause.seconds == pytest.approx(own + tokens / 200) and pause.tokens == tokens
    assert model.predict(Change.LIVE, None).seconds == 0


def test_what_was_not_measured_is_not_predicted() -> None:
    model = learnt(requests=(running(573),))
    for change in (Change.CACHE_REBUILD, Change.RELOAD):
        pause = model.predict(change, None)
        assert pause.seconds is None and numbers(pause.words) == [573]
    assert model.predict(Change.RELOAD, 2.0).seconds is None  # the prefill rate is missing
    assert numbers(model.predict(Change.RELOAD, 2.0).words) == [2, 573]
    model.learn_rebuild(1.0)
    model.clear()
    assert model.predict(Change.CACHE_REBUILD, None).seconds is None


def test_memory_is_said_with_the_tokens_where_they_change() -> None:
    before = MemoryPlan(2**40, 2**40, 0, 2**40, 2**30, 0, 2**30, 2**20, 1024)
    assert numbers(memory_words(before, 16, before, 16)) == [2, 2]
    after = before.with_blocks(2048)
    assert numbers(memory_words(before, 16, after, 16)) == [2, 3, 1024 * 16, 2048 * 16]
