"""A change of settings takes from Apply until the requests that it paused continue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

from app.link.bridge import EngineState
from app.link.change_watch import Applied, ChangeWatch
from engine.config import Change
from engine.messages import OutputEvent, Reconfigured
from engine.snapshot import FinishReason
from tests.app.fake_engine import MODEL, FakeEngine
from tests.figures import numbers
from tests.widgets.synthetic import snapshot


@pytest.fixture
def engine(qtbot: QtBot) -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.deleteLater()


class Watched:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine, self.watch = engine, ChangeWatch(engine, engine)
        self.applied: list[Applied] = []
        self.watch.applied.connect(self.applied.append)
        self.engine.state_changed.emit(EngineState.READY)
        self.engine.snapshot.emit(snapshot(1.0, num_running=2, num_waiting=1))

    def answer(
        self, change: Change, seconds: float = 0.5, preempted: int = 0, lost: int = 0,
        **settings: object,
    ) -> None:  # fmt: skip
        assert self.engine.config is not None
        self.engine.config = self.engine.config.replace(**settings)
        model = replace(MODEL, weights_bytes=MODEL.weights_bytes // 2)
        self.engine.reconfigured.emit(
            Reconfigured(self.engine.config, change, seconds, (), model, None, preempted, lost)
        )

    def token(self, request_id: str, reason: FinishReason | None = None) -> None:
        ids = () if reason else (1,)
        self.engine.outputs.emit(
            [OutputEvent(request_id, "x", ids, 0.0, 0, 1, 0, finish_reason=reason)]
        )


def test_it_ends_when_every_paused_request_continues(engine: FakeEngine) -> None:
    watched = Watched(engine)
    engine.reconfiguring.emit({"block_size": 32})
    applying = watched.watch.applying
    assert applying is not None and applying.change is Change.CACHE_REBUILD
    assert applying.tokens == {"r0": 810, "r1": 810}  # not the one that waits
    watched.token("r0")  # was on its way
    watched.answer(Change.CACHE_REBUILD, preempted=2, lost=1618, block_size=32)
    assert watched.applied == [] and watched.watch.applying is not None
    watched.token("r2")
    watched.token("r0")
    assert watched.applied == []
    watched.token("r1", FinishReason.ABORT)
    [made] = watched.applied
    assert (made.engine_s, made.num_paused, made.num_tokens) == (0.5, 2, 1618)  # as the engine says
    assert made.waited_s > 0 and watched.watch.applying is None
    assert numbers(made.text) == [16, 32] and 1618 in numbers(made.sentence)


def test_without_requests_it_ends_with_the_answer(engine: FakeEngine) -> None:
    watched = Watched(engine)
    engine.snapshot.emit(snapshot(1.0))
    engine.reconfiguring.emit({"quantization": "int8"})
    watched.answer(Change.RELOAD, quantization="int8")
    [made] = watched.applied
    assert (made.engine_s, made.waited_s, made.num_paused) == (0.5, 0.5, 0)
    assert made.weights == (MODEL.weights_bytes, MODEL.weights_bytes // 2)


def test_live_changes_pause_nothing_and_failed_ones_end(engine: FakeEngine) -> None:
    watched = Watched(engine)
    engine.reconfiguring.emit({"max_num_seqs": 3})
    assert watched.watch.applying is None
    watched.answer(Change.LIVE, max_num_seqs=3)
    assert watched.applied == []
    engine.reconfiguring.emit({"block_size": 32})
    engine.reconfigure_failed.emit(None)
    assert watched.watch.applying is None and watched.applied == []


def test_a_change_from_another_window_counts_as_the_engine_says(engine: FakeEngine) -> None:
    watched = Watched(engine)
    watched.answer(Change.CACHE_REBUILD, 0.25, block_size=8)
    assert [(made.engine_s, made.waited_s) for made in watched.applied] == [(0.25, 0.25)]


def test_requests_of_other_windows_continue_by_their_counts(engine: FakeEngine) -> None:
    watched = Watched(engine)
    engine.reconfiguring.emit({"block_size": 32})
    watched.answer(Change.CACHE_REBUILD, block_size=32)
    now = snapshot(2.0, num_running=2, num_waiting=1)
    engine.snapshot.emit(now)
    assert watched.applied == []
    first, *rest = now.requests
    grown = replace(first, num_output_tokens=first.num_output_tokens + 1)
    engine.snapshot.emit(replace(now, requests=(grown, *rest)))
    assert watched.applied == []
    engine.snapshot.emit(replace(now, requests=tuple(rest[1:])))  # the other one ended
    assert len(watched.applied) == 1 and watched.watch.applying is None
