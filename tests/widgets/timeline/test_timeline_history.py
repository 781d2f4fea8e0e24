"""The history of steps against a plain model of it, and its pictures against its numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.snapshot import RequestSnapshot, RequestState, RequestTimes, StepEntry, StepRecord
from tests.tiers import examples
from widgets.theme.tables import load_theme
from widgets.timeline.history import FINISHED, RESUMED, Kind, StepHistory
from widgets.timeline.picture import paint_bars, paint_cells

COLORS = load_theme("light")


def step(index: int, *entries: StepEntry, preempted=(), finished=(), duration=0.01) -> StepRecord:
    return StepRecord(
        index, index * 0.1, duration, entries, len(entries), 0, tuple(preempted), tuple(finished)
    )


def request(name: str, state: RequestState, arrival: float) -> RequestSnapshot:
    return RequestSnapshot(name, state, 10, 0, 0, 0, 0, 0, RequestTimes(arrival))


def shown(history: StepHistory) -> dict[tuple[int, str], int]:
    ordinals, numbers, kinds = history.cells(history.first, history.end)
    return {
        (o, history.request_id(n)): k
        for o, n, k in zip(ordinals.tolist(), numbers.tolist(), kinds.tolist(), strict=True)
    }


def test_one_request_from_arrival_to_end() -> None:
    history = StepHistory()
    waiting, running = RequestState.WAITING, RequestState.RUNNING
    other = StepEntry("other", "decode", 1)
    history.add([step(0, other), step(1, other)], [request("a", waiting, 0.05)])
    history.add(
        [
            step(2, StepEntry("a", "prefill", 64, 32), other),
            step(3, StepEntry("a", "prefill", 64), other),
            step(4, other, preempted=["a"]),
            step(5, other),
            step(6, StepEntry("a", "prefill", 128), other),
            step(7, StepEntry("a", "decode", 1)),
            step(8, StepEntry("a", "decode", 3, 0, 4, 2), finished=["a"]),
        ],
        [request("other", running, 0.0)],
    )
    mine = {o: k for (o, name), k in shown(history).items() if name == "a"}
    assert mine == {
        2: Kind.CACHED, 3: Kind.PREFILL, 4: Kind.PREEMPTED, 6: Kind.PREFILL, 7: Kind.DECODE,
        8: Kind.DRAFT | FINISHED,
    }  # fmt: skip
    waits = [
        (s.start, s.end, s.is_preempted)
        for s in history.spans(0, 9)
        if history.request_id(s.number) == "a" and s.end != s.start
    ]
    assert waits == [(1, 2, False), (5, 6, True)]


def test_a_request_that_still_waits_or_gave_up() -> None:
    history = StepHistory()
    other = StepEntry("other", "decode", 1)
    waiting = request("w", RequestState.WAITING, 0.0)
    history.add([step(0, other)], [waiting])
    history.add([step(1, other)], [waiting])
    (span,) = [s for s in history.spans(0, 2) if history.request_id(s.number) == "w"]
    assert (span.start, span.end) == (0, None)
    history.add([step(2, other)], [])
    assert span.end == 3


NAMES = ("a", "b", "c", "d")
PLACES = (
    "", "waiting", "preempted", "preempted waiting", "prefill", "decode", "prefill done",
    "decode done",
)  # fmt: skip
"""Of a request in a step: where it is not, where it waits, and what it does."""
STEPS = st.integers(0, 40).flatmap(
    lambda count: st.lists(
        st.tuples(*[st.sampled_from(PLACES)] * len(NAMES)), min_size=count, max_size=count
    )
)


@settings(max_examples=examples(80))
@given(STEPS, st.integers(1, 12))
def test_what_is_kept_is_what_happened_and_nothing_else(
    steps: list[tuple[str, ...]], capacity: int
) -> None:
    history = StepHistory(capacity)
    wanted: list[dict[str, int]] = []
    for index, places in enumerate(steps):
        words = {name: place.split() for name, place in zip(NAMES, places, strict=True) if place}
        active = {n: w[0] for n, w in words.items() if w[0] in ("prefill", "decode")}
        done = {name for name in active if "done" in words[name]}
        out = [name for name in words if "preempted" in words[name]]
        entries = [StepEntry(name, kind, 1) for name, kind in active.items()]
        waiting = [name for name in words if "waiting" in words[name]]
        requests = [request(n, RequestState.RUNNING, 0.1 * index) for n in active if n not in done]
        requests += [request(n, RequestState.WAITING, 0.1 * index) for n in waiting]
        history.add([step(index, *entries, preempted=out, finished=sorted(done))], requests)
        kinds = {
            name: int(Kind.PREFILL if kind == "prefill" else Kind.DECODE)
            | (FINISHED if name in done else 0)
            for name, kind in active.items()
        }
        wanted.append(kinds | dict.fromkeys(out, int(Kind.PREEMPTED)))
    first = max(0, len(wanted) - capacity)
    assert (history.first, history.end) == (first, len(wanted))
    assert shown(history) == {
        (o, name): kind for o in range(first, len(wanted)) for name, kind in wanted[o].items()
    }
    for span in history.spans(history.first, history.end):
        assert history.request_id(span.number) in NAMES
    assert len(history._ids) <= (capacity + 2) * len(NAMES) + len(history._spans)
    for ordinal in range(first, len(wanted)):
        assert history.record(ordinal).index == ordinal


def test_nothing_is_left_of_what_is_forgotten() -> None:
    history = StepHistory(4)
    for index in range(400):
        name = f"r{index}"
        gone = request(f"w{index}", RequestState.WAITING, index * 0.1)
        entry = StepEntry(name, "decode", 1)
        history.add([step(index, entry, finished=[name])], [gone])
    assert len(history._ids) < 20 and len(history._numbers) < 20
    assert len(history._last_seen) < 20 and len(history._spans) < 20


def test_cells_have_their_colors_and_heights() -> None:
    kinds = np.array(
        [[Kind.PREFILL, Kind.DECODE | FINISHED], [Kind.CACHED, Kind.NOTHING]], np.uint8
    )
    image = paint_cells(kinds, 8, 12, COLORS)
    assert image.shape == (24, 16)
    prefill, decode = image[1:11, 0:7], image[1:11, 8:15]
    assert (prefill == COLORS.pixel("prefill")).all()
    assert decode[0, 0] == COLORS.pixel("panel") and decode[5, 0] == COLORS.pixel("decode")
    assert (decode[:, 6] == COLORS.pixel("text")).all()
    assert (image[13:23, 0:3] == COLORS.pixel("cached")).all()
    assert (image[13:23, 3:7] == COLORS.pixel("prefill")).all()
    assert (image[12:, 8:] == COLORS.pixel("panel")).all() and image[5, 7] == COLORS.pixel("panel")


def test_what_was_resumed_and_a_slot_that_is_idle_are_marked() -> None:
    kinds = np.array([[Kind.PREFILL | RESUMED, Kind.HELD, Kind.HELD]], np.uint8)
    image = paint_cells(kinds, 8, 12, COLORS)
    assert (image[1:11, 0:2] == COLORS.pixel("preempted")).all()
    assert (image[1:11, 3:7] == COLORS.pixel("prefill")).all()
    body = image[1:11, 8:24]
    assert set(np.unique(body)) == {COLORS.pixel("queued"), COLORS.pixel("panel")}
    assert (np.count_nonzero(body == COLORS.pixel("queued"), axis=0) >= 2).all()  # in every column


def test_one_that_waits_beside_an_idle_slot_has_cells_until_it_begins() -> None:
    history = StepHistory()
    other, mine = StepEntry("other", "decode", 1), StepEntry("mine", "prefill", 8)
    waits = [dataclasses.replace(step(i, other), held_back=("mine",)) for i in (1, 2)]
    again = StepEntry("other", "prefill", 9, is_resumed=True)
    history.add([step(0, other), *waits, step(3, again, mine)])
    assert shown(history) == {
        (0, "other"): Kind.DECODE, (1, "other"): Kind.DECODE, (2, "other"): Kind.DECODE,
        (1, "mine"): Kind.HELD, (2, "mine"): Kind.HELD, (3, "mine"): Kind.PREFILL,
        (3, "other"): Kind.PREFILL | RESUMED,
    }  # fmt: skip
    (wait,) = [s for s in history.spans(0, 4) if history.request_id(s.number) == "mine"]
    assert (wait.start, wait.end) == (1, 3)


def test_bars_are_as_high_as_their_steps_are_long() -> None:
    image = paint_bars(np.array([0.01, 0.02, 0.04]), 0.04, 5, 20, COLORS)
    heights = (image == COLORS.pixel("other")).sum(axis=0)
    assert [int(heights[c * 5]) for c in range(3)] == [5, 10, 20]
    assert heights[4] == 0 and image[-1, 0] == COLORS.pixel("other")


def test_a_reply_that_is_continued_begins_again() -> None:
    """The time since it was stopped is none between its tokens."""
    history, decode = StepHistory(), StepEntry("a", "decode", 1)
    first = request("a", RequestState.RUNNING, 0.0)
    history.add([step(0, StepEntry("a", "prefill", 64)), step(1, decode)], [first])
    history.add([], [first])  # still the same
    history.add([step(2, decode)], [])  # and stopped
    again = request("a", RequestState.RUNNING, 9.05)
    history.add([step(91, decode), step(92, decode)], [again])  # all but one token were cached
    mean, longest = history.gaps(0, 5)
    assert np.isnan(mean).tolist() == [True, False, False, True, False]
    assert np.nanmax(longest) < 0.2
    _, numbers, _ = history.cells(0, 5)
    assert numbers.tolist() == [0, 0, 0, 1, 1]
