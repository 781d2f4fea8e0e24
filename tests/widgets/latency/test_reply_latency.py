"""The latency of a reply taken apart: what adds up, and what a slow gap is owed to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import RequestTimes, StepEntry, StepRecord, TokenEvent
from tests.figures import numbers
from widgets.latency.chart import first_token_text, gap_text, gaps_text
from widgets.latency.reply import Cause, ReplyLatency, Stage, reply_latency

NAMES = {"me": "My chat", "b": "Planning", "c": "Notes", "d": "More"}


class Run:
    """Steps one after the other, 10 ms each unless told otherwise; "me" arrives at 100 s."""

    def __init__(self, queue: float = 0.004) -> None:
        self.now = 100.0 + queue
        self.first = self.now
        self.steps: list[StepRecord] = []
        self.tokens: list[TokenEvent] = []

    def step(
        self,
        *entries: StepEntry,
        seconds: float = 0.010,
        after: float = 0.0,
        token: bool = True,
        preempted: Sequence[str] = (),
    ) -> None:
        self.now += after
        self.steps.append(
            StepRecord(len(self.steps) + 7, self.now, seconds, entries, len(entries), 0,
                       preempted=tuple(preempted))
        )  # fmt: skip
        self.now += seconds
        if token:
            self.tokens.append(TokenEvent(self.now - 0.0001, 1))

    def decode(self, count: int = 1, **options: float) -> None:
        for _ in range(count):
            self.step(StepEntry("me", "decode", 1), **options)

    def latency(self, steps: Sequence[StepRecord] | None = None) -> ReplyLatency:
        times = RequestTimes(100.0, self.first, tuple(self.tokens), self.now)
        return reply_latency("me", times, self.steps if steps is None else steps)


def prefill(name: str, count: int, cached: int = 0) -> StepEntry:
    return StepEntry(name, "prefill", count, cached)


def started() -> Run:
    run = Run()
    run.step(prefill("me", 64))
    run.decode(9)
    return run


def last_gap(run: Run) -> tuple[Cause, str]:
    latency = run.latency()
    index = len(latency.gaps) - 1
    return latency.causes[index], gap_text(latency, index, NAMES.__getitem__)


def test_the_first_token_is_queue_chunks_and_waits() -> None:
    run = Run(queue=0.050)
    run.step(prefill("me", 512, 128), token=False, seconds=0.2)
    run.step(prefill("b", 512), token=False, seconds=0.1)
    run.step(prefill("me", 88), seconds=0.04)
    run.decode(3)
    latency = run.latency()
    assert [s.stage for s in latency.stretches] == ["queue", "prefill", "wait", "prefill"]
    assert latency.seconds_of(Stage.QUEUE) == pytest.approx(0.05)
    assert latency.seconds_of(Stage.WAIT) == pytest.approx(0.1)
    told = ("390 ms", "50 ms", "240 ms", "600 tokens", "2 chunks", "128 tokens", "100 ms")
    places = [first_token_text(latency).find(figure) for figure in told]
    assert -1 not in places and places == sorted(places)
    assert gaps_text(latency).startswith("3 gaps") and gaps_text(latency).count("10 ms") == 2


def test_a_server_without_steps_has_one_stretch_before_the_first_token() -> None:
    tokens = (TokenEvent(10.4, 1), TokenEvent(10.45, 1))
    latency = reply_latency("me", RequestTimes(10.0, None, tokens, 10.5), ())
    assert [one.stage for one in latency.stretches] == [Stage.BOTH]
    assert latency.ttft_s == pytest.approx(0.4) and "not reported" in first_token_text(latency)


def test_a_gap_with_another_s_prefill_names_it() -> None:
    run = started()
    run.step(StepEntry("me", "decode", 1), prefill("b", 512), seconds=0.095)
    cause, text = last_gap(run)
    assert cause is Cause.PREFILL
    told = ("Token 11", "95 ms", "step 17", "512", "“Planning”")
    assert all(figure in text for figure in told)
    run.step(
        StepEntry("me", "decode", 1), *(prefill(name, 100) for name in "bcd"), seconds=0.08
    )
    assert all(part in last_gap(run)[1] for part in ("300", "“Planning”", "2 others"))
    assert len(run.latency().slow_gaps) == 2
    assert run.latency().slow_gaps[0].seconds == pytest.approx(0.095)


def test_a_preemption_is_named_with_what_was_computed_again() -> None:
    run = started()
    run.step(StepEntry("b", "decode", 1), token=False, preempted=["me"])
    run.step(prefill("me", 74), seconds=0.03)
    cause, words = last_gap(run)
    assert cause is Cause.PREEMPTED
    assert "steps 17 to 18" in words and "74 tokens" in words


def test_time_in_which_no_step_ran_is_said() -> None:
    run = started()
    run.decode(after=0.5)
    cause, words = last_gap(run)
    assert cause is Cause.BETWEEN and "500 ms" in words


def test_a_gap_whose_step_was_not_reported_yet_has_no_cause() -> None:
    run = started()
    run.decode(seconds=0.5)
    run.decode(3)
    late = run.latency(run.steps[:-4])
    assert late.slow_gaps and all(gap.reason is None for gap in late.slow_gaps)
    assert run.latency().slow_gaps[0].reason is not None


def test_a_larger_batch_is_said() -> None:
    run = started()
    others = [StepEntry(f"r{i}", "decode", 1) for i in range(7)]
    run.step(StepEntry("me", "decode", 1), *others, seconds=0.03)
    cause, words = last_gap(run)
    assert cause is Cause.BATCH and numbers(words)[-2:] == [8, 1]


def test_a_slow_step_that_did_no_more_is_not_explained_away() -> None:
    run = started()
    run.decode(seconds=0.06)
    assert last_gap(run)[0] is Cause.UNKNOWN


def test_a_usual_gap_is_not_slow_however_short() -> None:
    run = Run()
    run.step(prefill("me", 8))
    run.decode(5, seconds=0.0004)
    run.decode(seconds=0.0016)  # four times the median, but nobody reads the difference
    assert last_gap(run)[0] is Cause.NONE


def test_without_its_steps_the_request_s_own_times_remain() -> None:
    run = started()
    latency = run.latency(steps=[])
    assert all(gap.reason is None for gap in latency.gaps)
    assert [s.stage for s in latency.stretches] == ["queue", "prefill"]
    assert latency.stretches[0].seconds == pytest.approx(0.004)
    assert set(latency.causes) <= {Cause.NONE, Cause.UNKNOWN}
    run.decode(seconds=0.2)
    assert gaps_text(run.latency(steps=[])) != gaps_text(run.latency())
    expired = gap_text(run.latency(steps=[]), 9, NAMES.__getitem__)
    assert expired != gap_text(run.latency(), 9, NAMES.__getitem__) and "200 ms" in expired


def test_a_single_gap_has_neither_median_nor_max() -> None:
    run = Run()
    run.step(prefill("me", 5))
    run.decode(1)
    said = gaps_text(run.latency())
    assert said.startswith("1 gap") and said.count("10 ms") == 1


def test_a_reply_of_one_token_has_no_gaps() -> None:
    run = Run()
    run.step(prefill("me", 5))
    assert run.latency().gaps == () and gaps_text(run.latency())
    assert run.latency().ttft_s == pytest.approx(0.0139)


@given(
    st.lists(
        st.tuples(
            st.booleans(),  # "me" takes part
            st.floats(0.001, 0.2),  # seconds of the step
            st.floats(0.0, 0.1),  # before it
            st.booleans(),  # it brings a token
        ),
        min_size=1,
        max_size=40,
    )
)
def test_the_parts_add_up_and_no_step_counts_twice(
    plan: list[tuple[bool, float, float, bool]],
) -> None:
    run = Run()
    run.step(prefill("me", 4), token=False)
    for takes_part, seconds, after, token in plan:
        entry = StepEntry("me" if takes_part else "b", "decode", 1)
        run.step(entry, seconds=seconds, after=after, token=takes_part and token)
    latency = run.latency()
    if not run.tokens:
        assert latency.stretches == () and latency.gaps == ()
        return
    edges = [0.0]
    for stretch in latency.stretches:
        assert stretch.start == pytest.approx(edges[-1]) and stretch.end >= stretch.start
        edges.append(stretch.end)
    assert edges[-1] == pytest.approx(run.tokens[0].time - 100.0)
    total = sum(gap.seconds for gap in latency.gaps)
    assert total == pytest.approx(run.tokens[-1].time - run.tokens[0].time)
    seen = [step.index for gap in latency.gaps for step in gap.steps]
    assert seen == sorted(set(seen))
    if latency.gaps:  # every step after the first token's is in exactly one gap
        after_first = [s.index for s in run.steps if s.start >= run.tokens[0].time]
        last = run.tokens[-1].time
        assert seen == [i for i in after_first if run.steps[i - 7].start < last]
