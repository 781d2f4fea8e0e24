"""The reasons of long gaps are found while the steps are at hand, and stored with the reply."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.features.chat import cause_recorder
from app.features.chat.cause_recorder import PATIENCE, CauseRecorder
from app.features.chat.reply_data import continued, pack_times, unpack_times
from engine.messages import OutputEvent
from engine.snapshot import RequestTimes, StepEntry, StepRecord, TokenEvent
from tests.widgets.latency.test_reply_latency import NAMES, Run, prefill
from widgets.latency.causes import MOST_NAMES, Cause, Changed, Reason, ReplyTimes
from widgets.latency.chart import gap_text
from widgets.latency.reply import reply_latency

REASONS = st.builds(
    Reason,
    st.integers(0, 30),
    st.sampled_from([cause for cause in Cause if cause]),
    st.integers(0, 10**9).map(lambda us: us / 1e6),
    *[st.integers(-1, 9999) for _ in range(5)],
    st.lists(st.text(max_size=9), max_size=3).map(tuple),
    st.text(max_size=9),
)


@given(st.lists(REASONS, max_size=9), st.integers(0, 30))
def test_reasons_are_read_as_they_were_written(reasons: list[Reason], count: int) -> None:
    tokens = tuple(TokenEvent(float(at), 1) for at in range(count))
    times = ReplyTimes(0.0, 0.0, tokens, float(count), tuple(reasons))
    found = unpack_times(pack_times(times))
    stored = found.reasons if isinstance(found, ReplyTimes) else ()
    assert stored == tuple(one for one in reasons if one.place < count - 1)


def recorded(run: Run, piece: int, snapshots: int, changes: list[Changed]) -> ReplyTimes:
    """What is stored of a run whose steps arrive in so many snapshots, after their outputs."""
    recorder, got = CauseRecorder(NAMES.__getitem__), []
    recorder.begin("me", 100.0)
    for change in changes:
        recorder.take_change(change)
    times = RequestTimes(100.0, run.first, tuple(run.tokens), run.now)
    size = -(-len(run.steps) // snapshots)
    tokens = list(run.tokens)
    for at in range(0, len(run.steps), size):
        steps = run.steps[at : at + size]
        while tokens and tokens[0].time <= steps[-1].end:
            event = tokens.pop(0)
            recorder.take_outputs([OutputEvent("me", "x", (1,), event.time, 0, 4, 0)])
        if not tokens and at + size >= len(run.steps):
            recorder.end("me", times, got.append)
        recorder.take_steps(steps)
        assert recorder.num_steps <= 2 * size + piece + 130  # and a second before
    assert len(got) == 1 and recorder.num_steps == 0
    return got[0]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["decode", "prefill", "preempted", "pause"]), min_size=4, max_size=60),
    st.integers(1, 9),
    st.integers(5, 30),
)
def test_every_slow_gap_has_the_cause_that_its_steps_gave(
    kinds: list[str], snapshots: int, piece: int
) -> None:
    run = Run()
    run.step(prefill("me", 8))
    run.decode(70)  # the median
    for kind in kinds:
        match kind:
            case "prefill":
                run.step(StepEntry("me", "decode", 1), prefill("b", 512), seconds=0.2)
            case "preempted":
                run.step(StepEntry("b", "decode", 1), token=False, preempted=["me"])
                run.step(prefill("me", 74), seconds=0.1)
            case "pause":
                run.decode(after=0.3)
            case _:
                run.decode()
    before = cause_recorder.PIECE
    cause_recorder.PIECE = piece
    try:
        stored = recorded(run, piece, snapshots, [])
    finally:
        cause_recorder.PIECE = before
    live = run.latency()
    kept = reply_latency("me", stored, ())
    assert kept.causes == live.causes
    for index in range(len(kept.gaps)):
        if kept.causes[index]:  # in the same words
            assert gap_text(kept, index, str) == gap_text(live, index, NAMES.__getitem__)


def test_a_rebuild_between_steps_is_a_cause_of_its_own() -> None:
    run = Run()
    run.step(prefill("me", 512))
    run.decode(20)
    applied = run.now + 0.75
    run.step(prefill("me", 533), after=0.76, seconds=13.9)
    run.decode(5)
    change = Changed(applied + 0.05, 0.7, Cause.REBUILD, "Block size 16 → 32")
    stored = recorded(run, 20, 2, [change])
    [reason] = [one for one in stored.reasons if one.cause is Cause.REBUILD]
    assert (reason.seconds, reason.num_tokens, reason.text) == (0.7, 533, change.text)
    latency = reply_latency("me", unpack_times(pack_times(stored)), ())
    told = gap_text(latency, reason.place, str)
    assert all(part in told for part in ("cache rebuild", "700 ms", "533 tokens", "16 → 32"))
    late = Changed(applied + 99.0, 0.7, Cause.REBUILD, "of another time")
    assert all(one.cause is not Cause.REBUILD for one in recorded(run, 20, 2, [late]).reasons)


def test_a_live_change_that_preempts_is_named() -> None:
    run = Run()
    run.step(prefill("me", 64))
    run.decode(20)
    made = Changed(run.now + 0.005, 0.001, Cause.NONE, "Max running requests 16 → 1")
    run.step(StepEntry("b", "decode", 1), token=False, preempted=["me"], after=0.006)
    run.step(prefill("me", 85), seconds=0.1)
    run.decode(3)
    [reason] = [r for r in recorded(run, 20, 1, [made]).reasons if r.cause is Cause.PREEMPTED]
    assert reason.text == made.text and reason.num_tokens == 85


@pytest.mark.parametrize(
    ("part", "cause"),
    [("draft_s", Cause.DRAFT), ("model_s", Cause.MODEL), ("commit_s", Cause.HOST)],
)
def test_the_part_of_the_step_that_took_longer_is_named(part: str, cause: Cause) -> None:
    run = Run()
    run.step(prefill("me", 64))
    run.decode(20)
    usual = [StepRecord(**{**_fields(step), part: 0.004}) for step in run.steps]
    run.decode(seconds=0.1)
    slow = StepRecord(**{**_fields(run.steps[-1]), part: 0.094})
    latency = run.latency([*usual, slow])
    assert latency.causes[-1] is cause
    assert latency.gaps[-1].reason.seconds == pytest.approx(0.09)


def _fields(step: StepRecord) -> dict:
    return {name: getattr(step, name) for name in StepRecord.__dataclass_fields__}


def test_without_steps_the_reply_is_not_waited_for() -> None:
    recorder, got = CauseRecorder(str), []
    recorder.begin("me", 0.0)
    times = RequestTimes(0.0, 0.0, (TokenEvent(1.0, 1), TokenEvent(2.0, 1)), 2.0)
    recorder.end("me", times, got.append)
    for _ in range(PATIENCE):
        recorder.take_steps([])
    assert [one.reasons for one in got] == [()]
    recorder.end("unknown", times, got.append)
    assert len(got) == 1


def test_names_of_many_requests_are_a_few_and_a_number() -> None:
    ids = tuple(f"r{number}" for number in range(9))
    names = Reason(0, Cause.PREFILL, others=ids).named(str.upper).others
    assert len(names) == MOST_NAMES and names[0] == "R0" and names[-1] == f"+{9 - MOST_NAMES + 1}"
    assert Reason(0, Cause.BATCH).named(str.upper).others == ()


@given(st.integers(1, 20), st.integers(1, 20), st.floats(0.0, 5.0))
def test_a_continued_reply_has_both_parts_without_the_pause(
    first: int, second: int, queue: float
) -> None:
    one = RequestTimes(50.0, 50.5, tuple(TokenEvent(51.0 + i, 1) for i in range(first)), 80.0)
    arrival = 900.0
    tokens = tuple(TokenEvent(arrival + queue + 1.0 + i, 2) for i in range(second))
    other = RequestTimes(arrival, arrival + queue, tokens, 950.0)
    whole = continued(one, other, 40)
    assert whole.num_output_tokens == first + 2 * second and whole.first_scheduled == 0.5
    gap = whole.tokens[first].time - whole.tokens[first - 1].time
    assert gap == pytest.approx(queue + 1.0)
    [reason] = whole.reasons
    assert (reason.place, reason.cause, reason.num_tokens) == (first - 1, Cause.CONTINUED, 40)
    again = continued(whole, other, 0)
    assert [r.place for r in again.reasons] == [first - 1, first + second - 1]
