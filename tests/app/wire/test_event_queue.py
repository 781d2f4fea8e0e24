"""What waits for a slow window: merged, bounded, and nothing of a reply lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.server import attach_session as module
from app.server.attach_session import EventQueue
from app.wire.codec import WireEvent
from engine import messages as m
from engine.errors import ErrorInfo
from engine.snapshot import EngineSnapshot, FinishReason, Sample
from tests.app.fakes import snapshot_at_rest


@pytest.fixture(scope="module")
def snapshot() -> EngineSnapshot:
    """Of an engine at rest."""
    return snapshot_at_rest("/models/tiny")


def output(request: str, text: str, number: int, *, ends: bool = False) -> m.OutputEvent:
    reason = FinishReason.STOP if ends else None
    return m.OutputEvent(
        request, text, (number,), float(number), number, 3, 0, finish_reason=reason,
        is_first=number == 0,
    )  # fmt: skip


def drained(box: EventQueue) -> Iterator[WireEvent]:
    while (event := box.next()) is not None:
        yield event


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_a_reply_stays_whole_however_much_is_merged(given_: list[tuple[str, bool]]) -> None:
    box = EventQueue()
    box._merge_at = 5
    told = []
    for number, (request, fails) in enumerate(given_):
        box.put(output(request, f"{request}{number} ", number))
        told.append((request, number))
        if fails:
            box.put(m.RequestFailed("z", ErrorInfo("words")))
    heard = [e for e in drained(box) if isinstance(e, m.OutputEvent)]
    for request in "abc":
        mine = [e for e in heard if e.request_id == request]
        numbers = [n for r, n in told if r == request]
        assert "".join(e.text for e in mine) == "".join(f"{request}{n} " for n in numbers)
        assert [t for e in mine for t in e.token_ids] == numbers
    assert not box


def test_many_pieces_become_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGE_AT", 100)
    box = EventQueue()
    box._merge_at = 100
    for number in range(10_000):
        box.put(output("ab"[number % 2], "x", number))
    box.put(output("a", "", 10_000, ends=True))
    events = list(drained(box))
    assert len(events) < 250
    assert isinstance(events[0], m.OutputEvent)
    assert events[0].is_first
    ends = [e for e in events if isinstance(e, m.OutputEvent) and e.finish_reason is not None]
    assert [(e.request_id, e.finish_reason) for e in ends] == [("a", FinishReason.STOP)]


def test_snapshots_become_the_latest_with_the_samples_of_all(snapshot: EngineSnapshot) -> None:
    box = EventQueue()
    for number in range(30):
        sample = (Sample(float(number), 0.1),)
        box.put(m.SnapshotEvent(dataclasses.replace(snapshot, time=float(number), itl=sample)))
    (event,) = drained(box)
    assert isinstance(event, m.SnapshotEvent)
    assert event.snapshot.time == 29.0
    assert len(event.snapshot.itl) == 30


def test_samples_that_nobody_takes_are_bounded(snapshot: EngineSnapshot) -> None:
    box = EventQueue()
    samples = tuple(Sample(float(i), 0.1) for i in range(15_000))
    for _ in range(3):
        box.put(m.SnapshotEvent(dataclasses.replace(snapshot, itl=samples)))
    (event,) = drained(box)
    assert isinstance(event, m.SnapshotEvent)
    assert len(event.snapshot.itl) == 20_000


def test_progress_is_the_latest_and_comes_before_what_ends_it(snapshot: EngineSnapshot) -> None:
    box = EventQueue()
    box.put(m.SnapshotEvent(snapshot))
    for done in range(5):
        box.put(m.LoadProgress("reading", done, 5))
    box.put(m.Unloaded())
    assert list(drained(box)) == [m.LoadProgress("reading", 4, 5), m.Unloaded()]


def test_a_window_that_takes_nothing_fills_its_box() -> None:
    box = EventQueue()
    text = "x" * 100_000
    for number in range(1000):
        assert not box.is_full or number > 100
        box.put(output("a", text, number))
        if box.is_full:
            break
    assert box.is_full
    list(drained(box))
    assert not box.is_full
    assert box._weight == 0
