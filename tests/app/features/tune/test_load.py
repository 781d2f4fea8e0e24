"""The background load against a scripted engine: paces, counts, what it refuses, how it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pytestqt.qtbot import QtBot

from app.bench.load import Pace
from app.bench.workload import Length, Workload
from app.features.tune.load import MOST_AT_ONCE, BackgroundLoad
from app.features.tune.load_plan import LoadPlan, LoadState
from app.link.bridge import EngineBridge
from engine import messages as m
from engine.config import EngineConfig
from tests.app.fakes import FakeEngineThread, Script
from tests.figures import numbers

SMALL = Workload("small", "Small", 4, Length(4, 9), Length(3, 6))


@pytest.fixture
def script() -> Script:
    return Script(step_s=0.001)


@pytest.fixture
def bridge(qtbot: QtBot, script: Script) -> Iterator[EngineBridge]:
    made = EngineBridge(lambda on_event: FakeEngineThread(on_event, script))
    with qtbot.waitSignal(made.loaded, timeout=3000):
        made.load(EngineConfig(model="/models/tiny"))
    yield made
    made.shutdown()


@pytest.fixture
def load(qtbot: QtBot, bridge: EngineBridge) -> Iterator[BackgroundLoad]:
    made = BackgroundLoad(bridge)
    yield made
    made.stop()


def sent(bridge: EngineBridge, kind: type) -> list:
    thread = bridge.engine
    assert isinstance(thread, FakeEngineThread)
    return [c for c in thread.commands if isinstance(c, kind)]


def start(qtbot: QtBot, load: BackgroundLoad, pace: Pace, workload: Workload = SMALL) -> None:
    load.start(LoadPlan(workload, next(iter(workload.variants)), pace))
    qtbot.waitUntil(lambda: load.state is not LoadState.PREPARING, timeout=3000)


def test_a_closed_loop_keeps_as_many_in_flight_and_counts_them(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    most: list[int] = []
    load.changed.connect(lambda: most.append(load.counts.in_flight))
    start(qtbot, load, Pace(concurrency=3))
    qtbot.waitUntil(lambda: load.counts.completed >= 12, timeout=5000)
    assert max(most) == 3 and load.counts.in_flight == 3
    load.stop()
    counts = load.counts
    assert counts.in_flight == 0 and counts.failed == 0
    assert counts.completed + counts.aborted == len(sent(bridge, m.AddRequest))
    assert len(sent(bridge, m.Abort)) == counts.aborted


def test_many_come_in_parts_so_that_the_window_lives(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad, script: Script
) -> None:
    script.step_s = 300.0  # nothing is answered meanwhile
    load._vocabulary = ("/models/tiny", list(range(50)))
    load.start(LoadPlan(SMALL, "unique", Pace(concurrency=40)))
    assert load.counts.in_flight == MOST_AT_ONCE
    qtbot.waitUntil(lambda: load.counts.in_flight == 40, timeout=3000)
    assert len(sent(bridge, m.AddRequest)) == 40


def test_requests_have_the_lengths_of_the_workload_and_names_of_their_own(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    start(qtbot, load, Pace(concurrency=2))
    qtbot.waitUntil(lambda: load.counts.completed >= 4, timeout=5000)
    load.stop()
    for command in sent(bridge, m.AddRequest):
        assert 4 <= len(command.prompt) <= 9 and 3 <= command.params.max_tokens <= 6
        assert command.params.temperature == 0 and command.params.ignore_eos
        assert load.name_of(command.request_id) == command.request_id.replace("-", " ")
    assert load.name_of("a chat's reply") is None


def test_two_runs_do_equal_work_on_other_tokens(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    prompts: list[list] = []
    for _ in range(2):
        before = len(sent(bridge, m.AddRequest))
        start(qtbot, load, Pace(concurrency=4))
        qtbot.waitUntil(lambda: load.counts.completed >= 2, timeout=5000)
        load.stop()
        prompts.append([c.prompt for c in sent(bridge, m.AddRequest)[before:][:4]])
    first, second = prompts
    assert [len(p) for p in first] == [len(p) for p in second] and first != second


def test_an_open_loop_sends_at_its_rate_whatever_the_engine_does(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad, script: Script
) -> None:
    script.step_s = 300.0  # nothing is answered meanwhile
    due = Pace(request_rate=100.0).due_times(1000, 0)
    early: list[int] = []

    def look() -> None:
        elapsed = time.perf_counter() - load._arrivals_from
        early.append(load.counts.in_flight - sum(at <= elapsed for at in due))

    load.changed.connect(look)
    start(qtbot, load, Pace(request_rate=100.0))
    qtbot.waitUntil(lambda: load.counts.in_flight >= 20)
    look()
    assert max(early) <= 0  # none came before its time


def test_an_open_loop_that_is_not_kept_up_with_drops_arrivals(
    qtbot: QtBot, load: BackgroundLoad, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.tune.load.MOST_IN_FLIGHT", 5)
    script.step_s = 300.0
    start(qtbot, load, Pace(request_rate=200.0))
    qtbot.waitUntil(lambda: load.counts.dropped > 3)
    assert load.counts.in_flight == 5


def test_the_pace_may_be_changed_while_it_runs(qtbot: QtBot, load: BackgroundLoad) -> None:
    said: list[str] = []
    load.happened.connect(lambda text, words: said.append(text))
    start(qtbot, load, Pace(concurrency=1))
    load.set_pace(Pace(concurrency=6))
    qtbot.waitUntil(lambda: load.counts.in_flight == 6, timeout=3000)
    load.set_pace(Pace(request_rate=5.0))
    qtbot.waitUntil(lambda: load.counts.completed >= 8, timeout=5000)
    load.stop()
    assert [numbers(text) for text in said] == [[1], [6], [5], []]


def test_what_can_never_fit_is_refused_with_the_numbers(qtbot: QtBot, load: BackgroundLoad) -> None:
    long = Workload("long", "Long prompts", 4, Length(2000, 2000), Length(100, 100))
    start(qtbot, load, Pace(concurrency=1), long)
    assert load.state is LoadState.IDLE and load.problem is not None
    assert numbers(load.problem.cause)[-2:] == [2100, 2048]
    start(qtbot, load, Pace(concurrency=1))
    assert load.state is LoadState.RUNNING and load.problem is None


def test_a_small_cache_is_no_surprise_in_the_middle(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    with qtbot.waitSignal(bridge.snapshot, check_params_cb=lambda s: s.config.block_size == 1):
        bridge.reconfigure(block_size=1)  # 128 blocks of one token
    wide = Workload("wide", "Wide", 4, Length(100, 100), Length(100, 100))
    start(qtbot, load, Pace(concurrency=1), wide)
    assert load.problem is not None and numbers(load.problem.cause)[-2:] == [200, 128]


def test_without_a_model_it_does_not_begin(qtbot: QtBot) -> None:
    bridge = EngineBridge(lambda on_event: FakeEngineThread(on_event))
    load = BackgroundLoad(bridge)
    load.start(LoadPlan(SMALL, "unique", Pace(concurrency=1)))
    assert not load.is_on and load.problem is not None
    assert load.problem.remedy


def test_a_load_that_only_fails_ends_and_says_why(
    qtbot: QtBot, load: BackgroundLoad, script: Script
) -> None:
    script.rejected_prompt = "("  # of every tuple of token ids
    start(qtbot, load, Pace(concurrency=2))
    qtbot.waitUntil(lambda: not load.is_on, timeout=3000)
    assert load.problem is not None and "9,000 tokens" in load.problem.cause
    assert load.counts.failed == 3


def test_a_crash_ends_it_and_it_can_be_started_again(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    start(qtbot, load, Pace(concurrency=2))
    with qtbot.waitSignal(bridge.crashed, timeout=3000):
        bridge.add_request("x", "crash please")
    assert not load.is_on and load.problem is not None
    assert load.problem.cause
    with qtbot.waitSignal(bridge.loaded, timeout=3000):
        bridge.load(EngineConfig(model="/models/tiny"))
    start(qtbot, load, Pace(concurrency=2))
    qtbot.waitUntil(lambda: load.counts.completed >= 3, timeout=3000)


def test_it_runs_on_through_a_change_of_settings(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    start(qtbot, load, Pace(concurrency=2))
    with qtbot.waitSignal(bridge.reconfigured, timeout=3000):
        bridge.reconfigure(dtype="bfloat16", block_size=32)
    before = load.counts.completed
    qtbot.waitUntil(lambda: load.counts.completed > before + 3, timeout=3000)
    assert load.is_on


def test_stopping_while_it_prepares_sends_nothing(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad
) -> None:
    load.start(LoadPlan(SMALL, "unique", Pace(concurrency=2)))
    load.stop()
    qtbot.wait(100)
    assert not load.is_on and sent(bridge, m.AddRequest) == []


def test_with_reserved_memory_a_request_asks_for_all_that_it_is_allowed(
    qtbot: QtBot, bridge: EngineBridge, load: BackgroundLoad, script: Script
) -> None:
    script.replies = 500
    with qtbot.waitSignal(bridge.reconfigured, timeout=3000):
        bridge.reconfigure(kv_allocation="contiguous")
    chatty = Workload("chatty", "Chatty", 4, Length(4, 4), Length(5, 5), max_tokens=400)
    start(qtbot, load, Pace(concurrency=1), chatty)
    qtbot.waitUntil(lambda: load.counts.completed >= 2, timeout=5000)
    load.stop()
    assert {c.params.max_tokens for c in sent(bridge, m.AddRequest)} == {400}
    assert load.counts.failed == 0
