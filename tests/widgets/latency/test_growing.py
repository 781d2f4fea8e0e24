"""A reply that grows is taken apart piece by piece, with the result of the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import RequestTimes, StepEntry
from tests.widgets.latency.test_reply_latency import Run, prefill
from widgets.latency.causes import Cause, Reason, ReplyTimes
from widgets.latency.growing import GrowingLatency
from widgets.latency.reply import ReplyLatency, reply_latency

DECODE = StepEntry("me", "decode", 1)


def written(works: list[str]) -> Run:
    run = Run()
    run.step(prefill("me", 64))
    for work in works:
        match work:
            case "slow":
                run.decode(seconds=0.05)
            case "stall":
                run.decode(after=0.2)
            case "prefill":
                run.step(DECODE, prefill("b", 512), seconds=0.08)
            case "preempted":
                run.step(DECODE, token=False, preempted=("me",))
                run.step(prefill("me", 80), seconds=0.06)
            case _:
                run.decode(3)
    return run


works = st.lists(st.sampled_from(["slow", "stall", "prefill", "preempted", ""]), max_size=30)


def shown(growing: GrowingLatency, run: Run, num_tokens: int, num_steps: int) -> ReplyLatency:
    times = RequestTimes(100.0, run.first, tuple(run.tokens[:num_tokens]))
    return growing.update("me", times, run.steps[:num_steps])


@given(works, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=6))
def test_pieces_are_the_whole(done: list[str], looks: list[tuple[float, float]]) -> None:
    """Also where the steps come later than the tokens, or earlier."""
    run, growing = written(done), GrowingLatency()
    for tokens, steps in sorted(looks):
        shown(growing, run, round(tokens * len(run.tokens)), round(steps * len(run.steps)))
    found = shown(growing, run, len(run.tokens), len(run.steps))
    whole = run.latency()
    assert found.stretches == whole.stretches and found.slow_places == whole.slow_places
    assert [gap[:4] for gap in found.gaps] == [gap[:4] for gap in whole.gaps]
    if not looks:
        assert found.causes == whole.causes


def test_causes_outlive_the_steps() -> None:
    run, growing = written(["", "", "prefill", "", "stall", "", ""]), GrowingLatency()
    before = shown(growing, run, len(run.tokens), len(run.steps))
    assert [cause for cause in before.causes if cause] == [Cause.PREFILL, Cause.BETWEEN]
    times = RequestTimes(100.0, run.first, tuple(run.tokens))
    after = growing.update("me", times, run.steps[-2:])
    assert after.causes == before.causes
    assert not any(gap.steps for gap in after.gaps[:-2])


def test_a_gap_whose_step_comes_later_waits_for_its_cause() -> None:
    run, growing = written(["", "", "slow", ""]), GrowingLatency()
    early = shown(growing, run, len(run.tokens), len(run.steps) - 4)
    assert early.slow_gaps and early.slow_gaps[0].reason is None
    later = shown(growing, run, len(run.tokens), len(run.steps)).slow_gaps[0].reason
    assert later is not None and later.cause is not Cause.BETWEEN


@given(works, works, st.data())
def test_stored_reasons_are_kept(done: list[str], more: list[str], data: st.DataObject) -> None:
    run, growing = written([*done, "", *more]), GrowingLatency()
    shown(growing, run, len(run.tokens) // 2, len(run.steps) // 2)
    places = data.draw(st.sets(st.integers(0, len(run.tokens) - 2)))
    stored = tuple(Reason(place, Cause.REBUILD, 0.5) for place in sorted(places))
    times = ReplyTimes(100.0, run.first, tuple(run.tokens), run.tokens[-1].time, stored)
    found, whole = growing.update("me", times, run.steps), reply_latency("me", times, run.steps)
    assert tuple(gap.reason for gap in found.gaps if gap.is_stored) == stored
    of_stored = [place for place in found.slow_places if place in places]
    assert [found.causes[place] for place in of_stored] == [
        whole.causes[place] for place in of_stored
    ]


def test_another_reply_begins_anew() -> None:
    run, growing = written(["slow", ""]), GrowingLatency()
    shown(growing, run, len(run.tokens), len(run.steps))
    times = RequestTimes(200.0, None, tuple(run.tokens[:1]))
    assert not growing.update("other", times, ()).gaps
