"""The bridge: nothing lost, nothing reordered, urgent things at once, quiet when idle."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from app.link.bridge import EngineBridge, EngineState
from app.link.dispatcher import TextThrottle
from app.wire.snapshots import merge_snapshots
from engine import messages as m
from engine.config import EngineConfig
from engine.snapshot import EngineSnapshot, FinishReason
from tests.app.fakes import FakeEngineThread, Script


class Listener(QObject):
    """Notes every signal of a bridge: outputs with the time of their arrival, snapshots with the
    time that the bridge goes by."""

    def __init__(self, bridge: EngineBridge) -> None:
        super().__init__()
        self.batches: list[tuple[float, list[m.OutputEvent]]] = []
        self.other: list[tuple[str, Any]] = []
        self.snapshots: list[tuple[float, EngineSnapshot]] = []
        bridge.outputs.connect(lambda b: self.batches.append((time.perf_counter(), b)))
        bridge.snapshot.connect(lambda s: self.snapshots.append((bridge.dispatcher.snapshot_at, s)))
        for name in ("loaded", "load_failed", "request_failed", "reconfigured", "crashed",
                     "reconfigure_failed", "load_progress"):  # fmt: skip
            signal = getattr(bridge, name)
            signal.connect(lambda event, name=name: self.other.append((name, event)))
        bridge.unloaded.connect(lambda: self.other.append(("unloaded", None)))

    @property
    def events(self) -> list[m.OutputEvent]:
        return [event for _, batch in self.batches for event in batch]

    def of(self, name: str) -> list[Any]:
        return [event for kind, event in self.other if kind == name]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def bridge(qtbot: QtBot, script: Script):  # type: ignore[no-untyped-def]
    made = EngineBridge(lambda on_event: FakeEngineThread(on_event, script))
    yield made
    made.shutdown()


def _load(qtbot: QtBot, bridge: EngineBridge) -> None:
    with qtbot.waitSignal(bridge.loaded, timeout=3000):
        bridge.load(EngineConfig(model="/models/tiny"))


def test_load_reports_progress_then_the_model(qtbot: QtBot, bridge: EngineBridge) -> None:
    heard = Listener(bridge)
    assert bridge.state is EngineState.EMPTY
    bridge.load(EngineConfig(model="/models/tiny"))
    assert bridge.state is EngineState.LOADING
    qtbot.waitUntil(lambda: bool(heard.of("loaded")), timeout=3000)
    kinds = [kind for kind, _ in heard.other]
    assert "load_progress" in kinds and kinds[-1] == "loaded"
    assert heard.of("load_progress")[-1].done <= heard.of("load_progress")[-1].total
    assert bridge.is_ready and bridge.model is not None and bridge.model.name == "tiny"


def test_text_of_parallel_replies_is_complete_and_in_order(
    qtbot: QtBot, bridge: EngineBridge, script: Script
) -> None:
    script.replies = 40
    _load(qtbot, bridge)
    heard = Listener(bridge)
    for number in range(5):
        bridge.add_request(f"r{number}", "how does paging work")
    qtbot.waitUntil(
        lambda: sum(e.finish_reason is not None for e in heard.events) == 5, timeout=5000
    )
    for number in range(5):
        mine = [e for e in heard.events if e.request_id == f"r{number}"]
        assert [e.token_ids[0] for e in mine] == list(range(1, 41))
        assert mine[0].is_first and mine[-1].finish_reason is FinishReason.STOP
        assert [e.finish_reason for e in mine[:-1]] == [None] * 39


def test_text_is_coalesced(qtbot: QtBot, bridge: EngineBridge, script: Script) -> None:
    script.replies = 200
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("r", "hello")
    qtbot.waitUntil(lambda: bool(heard.events and heard.events[-1].finish_reason), timeout=8000)
    seconds = heard.batches[-1][0] - heard.batches[0][0]
    # the first and the last come at once, whatever the timer does
    assert len(heard.batches) <= seconds * 1000 / 33 + 3
    assert len(heard.events) == 200


def test_first_token_and_end_do_not_wait_for_the_timer(
    qtbot: QtBot, bridge: EngineBridge, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextThrottle, "interval_ms", 120_000)
    script.replies = 30
    _load(qtbot, bridge)
    heard = Listener(bridge)
    delays = []
    for number in range(8):
        bridge.add_request(f"r{number}", "hello")
        qtbot.wait(15)  # some start while others run and the timer is busy
    qtbot.waitUntil(
        lambda: sum(e.finish_reason is not None for e in heard.events) == 8, timeout=5000
    )
    for at, batch in heard.batches:
        delays += [at - e.time for e in batch if e.is_first or e.finish_reason is not None]
    assert len(delays) == 16
    assert max(delays) < 30.0  # the timer would take 120 s


def test_snapshots_lose_no_step_and_come_at_most_four_times_a_second(
    qtbot: QtBot, bridge: EngineBridge, script: Script
) -> None:
    script.replies = 250
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("r", "hello")
    qtbot.waitUntil(lambda: sum(len(s.steps) for _, s in heard.snapshots) == 250, timeout=8000)
    indices = [step.index for _, s in heard.snapshots for step in s.steps]
    assert indices == sorted(set(indices)) and len(indices) == 250
    assert sum(len(s.ttft) for _, s in heard.snapshots) == 1
    assert sum(len(s.itl) for _, s in heard.snapshots) == 249
    times = [at for at, _ in heard.snapshots]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) > 0.24


def test_the_timer_rests_when_nothing_is_pending(qtbot: QtBot, bridge: EngineBridge) -> None:
    _load(qtbot, bridge)
    bridge.add_request("r", "hello")
    heard = Listener(bridge)
    qtbot.waitUntil(lambda: bool(heard.events and heard.events[-1].finish_reason), timeout=5000)
    qtbot.waitUntil(lambda: bridge.dispatcher.is_at_rest, timeout=1000)
    assert not bridge.dispatcher.inbox


def test_failures_leave_what_still_serves(
    qtbot: QtBot, bridge: EngineBridge, script: Script
) -> None:
    script.broken_models = ("broken",)
    script.failing_settings = ("kv_cache_memory_bytes",)
    heard = Listener(bridge)
    bridge.load(EngineConfig(model="/models/broken"))
    qtbot.waitUntil(lambda: bool(heard.of("load_failed")), timeout=3000)
    assert bridge.state is EngineState.EMPTY
    _load(qtbot, bridge)
    bridge.reconfigure(kv_cache_memory_bytes=9 * 2**30)
    qtbot.waitUntil(lambda: bool(heard.of("reconfigure_failed")), timeout=3000)
    assert bridge.config is not None and bridge.config.kv_cache_memory_bytes is None
    bridge.reconfigure(max_num_seqs=3)
    qtbot.waitUntil(lambda: bool(heard.of("reconfigured")), timeout=3000)
    assert bridge.config.max_num_seqs == 3
    bridge.add_request("bad", "reject me")
    qtbot.waitUntil(lambda: bool(heard.of("request_failed")), timeout=3000)
    assert bridge.is_ready


def test_a_crash_is_a_message_and_the_engine_can_be_loaded_again(
    qtbot: QtBot, bridge: EngineBridge
) -> None:
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("r", "crash please")
    qtbot.waitUntil(lambda: bool(heard.of("crashed")), timeout=3000)
    assert bridge.state is EngineState.CRASHED and not bridge.is_ready
    _load(qtbot, bridge)
    assert bridge.is_ready


def test_cancel_and_unload(qtbot: QtBot, bridge: EngineBridge, script: Script) -> None:
    script.load_steps, script.load_step_s = 100_000, 0.005
    heard = Listener(bridge)
    bridge.load(EngineConfig(model="/models/slow"))
    qtbot.waitUntil(lambda: bool(heard.of("load_progress")), timeout=3000)
    bridge.cancel_load()
    qtbot.waitUntil(lambda: bool(heard.of("load_failed")), timeout=3000)
    assert heard.of("load_failed")[0].cancelled
    script.load_steps = 1
    _load(qtbot, bridge)
    bridge.unload()
    qtbot.waitUntil(lambda: bool(heard.of("unloaded")), timeout=3000)
    assert bridge.state is EngineState.EMPTY and bridge.model is None


def test_shutdown_in_mid_reply_hands_on_the_end_of_every_request(
    qtbot: QtBot, bridge: EngineBridge, script: Script
) -> None:
    script.replies = 100_000
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("a", "hello")
    bridge.add_request("b", "hello")
    qtbot.waitUntil(lambda: len(heard.events) > 20, timeout=3000)
    bridge.shutdown()
    ends = {e.request_id: e.finish_reason for e in heard.events if e.finish_reason}
    assert ends == {"a": FinishReason.ABORT, "b": FinishReason.ABORT}
    bridge.add_request("late", "hello")  # does nothing, and starts no thread
    assert bridge.engine is None


def test_a_state_is_shown_in_another_turn_than_text(qtbot: QtBot, bridge: EngineBridge) -> None:
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("before", "hello")
    qtbot.waitUntil(lambda: any(e.finish_reason for e in heard.events))
    last = heard.events[-1].step_index
    qtbot.waitUntil(lambda: bool(heard.snapshots) and heard.snapshots[-1][1].step_index == last)
    qtbot.waitUntil(lambda: bridge.dispatcher.is_at_rest)
    order: list[str] = []
    bridge.outputs.connect(lambda batch: order.append("text"))
    bridge.snapshot.connect(lambda snapshot: order.append("state"))
    event = m.OutputEvent("r", "word", (1,), time.perf_counter(), 1, 4, 0)
    dispatcher = bridge.dispatcher
    dispatcher.inbox.extend([event, m.SnapshotEvent(heard.snapshots[-1][1])])
    dispatcher.snapshot_at = 0.0
    dispatcher.flush()
    assert order == ["text"]  # a first token may come now: the state waits, and not for long
    qtbot.waitUntil(lambda: order == ["text", "state"], timeout=1000)


def test_merged_snapshot_is_the_last_with_the_steps_of_all(
    qtbot: QtBot, bridge: EngineBridge
) -> None:
    _load(qtbot, bridge)
    heard = Listener(bridge)
    bridge.add_request("r", "hello")
    qtbot.waitUntil(lambda: len(heard.snapshots) >= 1, timeout=3000)
    bridge.add_request("s", "hello")
    qtbot.waitUntil(lambda: len(heard.snapshots) >= 2, timeout=3000)
    parts = [s for _, s in heard.snapshots]
    merged = merge_snapshots(parts)
    assert merged.step_index == parts[-1].step_index and merged.time == parts[-1].time
    assert len(merged.steps) == sum(len(s.steps) for s in parts)


def test_a_listener_hears_the_stream_only_where_it_asks(
    qtbot: QtBot, bridge: EngineBridge, script: Script
) -> None:
    script.replies = 4
    told: list[m.Event] = []
    bridge.set_listener(told.append, streams=False)
    _load(qtbot, bridge)
    for request_id in ("unheard", "heard"):
        with qtbot.waitSignal(bridge.ended, timeout=3000) as end:
            bridge.add_request(request_id, "hello")
        (event,) = end.args
        assert (event.request_id, event.finish_reason) == (request_id, FinishReason.STOP)
        bridge.set_listener(told.append, streams=True)
    assert any(isinstance(event, m.Loaded) for event in told)
    assert {e.request_id for e in told if isinstance(e, m.OutputEvent)} == {"heard"}
