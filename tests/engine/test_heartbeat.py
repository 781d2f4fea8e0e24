"""A stuck or dead engine is reported; slow work that goes on is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import EngineConfig, SamplingParams
from engine.engine_thread import EngineThread
from engine.engine_worker import EngineWorker
from engine.errors import ErrorInfo
from engine.heartbeat import (
    COMMAND_S,
    FIRST_STEP_S,
    LOOK_S,
    MARGIN,
    SLOW_S,
    STEP_S,
    Heartbeat,
    StepTimes,
    Watch,
)
from engine.llm_engine import LLMEngine
from engine.messages import (
    AddRequest,
    CountTokens,
    EngineCrashed,
    Event,
    InspectBlock,
    Load,
    Loaded,
    LoadFailed,
    OutputEvent,
    Recovered,
    RequestFailed,
    Stalled,
    TokensCounted,
)
from tests.engine import tiny_models
from tests.engine.thread_events import Recorder, finished, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPT = tuple(tiny_models.make_prompts((12,))[0])
WAIT_S = 60.0


class Clock:
    """Stands still until `run`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# Judging beats ---------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heartbeat(clock: Clock) -> Heartbeat:
    return Heartbeat(clock)


@pytest.fixture
def seen(clock: Clock, heartbeat: Heartbeat) -> Callable[[float], list[Event]]:
    """What a watch says in the next seconds."""
    watch = Watch(heartbeat)

    def run(seconds: float) -> list[Event]:
        said: list[Event] = []
        for _ in range(round(seconds / LOOK_S)):
            clock.now += LOOK_S
            event = watch.look()
            said += [] if event is None else [event]
        return said

    return run


Seen = Callable[[float], list[Event]]


def test_an_idle_engine_is_never_stuck(seen: Seen, heartbeat: Heartbeat) -> None:
    assert seen(1000) == [] and heartbeat.seconds == 0


def test_overdue_work_is_stalled_and_recovers(seen: Seen, heartbeat: Heartbeat) -> None:
    with heartbeat.during("counting", COMMAND_S):
        assert seen(COMMAND_S - LOOK_S) == []
        assert seen(LOOK_S) == [Stalled("counting", COMMAND_S)]
        assert heartbeat.seconds == COMMAND_S
        assert seen(COMMAND_S) == [Stalled("counting", 2 * COMMAND_S)]  # and when it has doubled
    (recovered,) = seen(LOOK_S)
    assert recovered == Recovered(2 * COMMAND_S)
    assert seen(100) == []


def test_progress_starts_the_time_again(seen: Seen, heartbeat: Heartbeat) -> None:
    with heartbeat.during("loading", SLOW_S):
        for _ in range(3):
            assert seen(SLOW_S - LOOK_S) == []
            heartbeat.progress()
        assert [type(event) for event in seen(SLOW_S + LOOK_S)] == [Stalled]


def test_a_process_that_was_stopped_is_not_stuck(
    seen: Seen, heartbeat: Heartbeat, clock: Clock
) -> None:
    with heartbeat.during("step", STEP_S):
        assert seen(LOOK_S) == []
        clock.now += 3600  # by a signal, or in a debugger: nobody looked
        assert seen(LOOK_S) == []
        assert [type(event) for event in seen(STEP_S)] == [Stalled]


def test_a_slow_step_of_a_known_size_is_not_stuck(seen: Seen, heartbeat: Heartbeat) -> None:
    for seconds in (FIRST_STEP_S - 1, 20, 20):
        with heartbeat.during("step", STEP_S):
            heartbeat.sized(1000)
            assert seen(seconds) == []
    with heartbeat.during("step", STEP_S):
        heartbeat.sized(900)
        assert seen(20 * MARGIN - 1) == []
        (stalled,) = seen(2)
        assert isinstance(stalled, Stalled) and "900" in stalled.doing


def test_a_step_goes_on_with_each_layer(seen: Seen, heartbeat: Heartbeat) -> None:
    for _ in range(2):
        with heartbeat.during("step", STEP_S):
            heartbeat.sized(1000)
            for _ in range(10):
                assert seen(STEP_S - LOOK_S) == []
                heartbeat.progress()
    with heartbeat.during("step", STEP_S):
        heartbeat.sized(1000)
        assert seen(10 * (STEP_S - LOOK_S) * MARGIN - LOOK_S) == [], "what whole steps took"


def test_how_long_a_step_may_take_without_a_beat() -> None:
    times = StepTimes()
    assert times.allowed_s(100_000) == FIRST_STEP_S
    times.note(1, 0.25)
    assert times.allowed_s(1) == STEP_S
    assert times.allowed_s(2) == times.allowed_s(1024) == FIRST_STEP_S
    times.note(1, 4.0)
    times.note(1, 4.0)
    assert times.allowed_s(1) == MARGIN * 4.0
    slow = StepTimes(layer_s=0.2)  # a CPU: nothing was measured
    assert slow.allowed_s(2048) == pytest.approx(0.2 * 2048)
    assert slow.allowed_s(1) == FIRST_STEP_S


# The thread ------------------------------------------------------------------------------------


@pytest.fixture
def thread(events: Recorder, clock: Clock) -> Iterator[EngineThread]:
    thread = EngineThread(events, clock=clock, look_s=0.005)
    thread.start()
    yield thread
    assert thread.stop(120)


class Block:
    """Blocks the next call of an engine's method until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        plain = getattr(LLMEngine, method)

        def blocked(*args: Any, **kwargs: Any) -> Any:
            if not self.begun.is_set():
                self.begun.set()
                assert self.go.wait(WAIT_S)
            return plain(*args, **kwargs)

        monkeypatch.setattr(LLMEngine, method, blocked)


def pass_until_stalled(events: Recorder, clock: Clock, since: int = 0) -> Stalled:
    """Seconds pass, each seen by the watcher."""
    deadline = time.monotonic() + WAIT_S
    while len(events.of(Stalled)) <= since:
        assert time.monotonic() < deadline
        clock.now += LOOK_S
        time.sleep(0.01)
    return events.of(Stalled)[-1]


@pytest.mark.parametrize(
    ("method", "command", "doing"),
    [
        ("step", AddRequest("slow", PROMPT, GREEDY), "step"),
        ("inspect_block", InspectBlock(0), "inspecting a block"),
    ],
)
def test_a_stuck_step_or_command_is_reported_and_recovers(
    method: str, command: Any, doing: str, events: Recorder, thread: EngineThread, clock: Clock,
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    thread.submit(Load(config))
    events.wait(Loaded)
    block = Block(monkeypatch, method)
    thread.submit(command)
    assert block.begun.wait(WAIT_S)
    assert not thread.pulse.is_stuck
    stalled = pass_until_stalled(events, clock)
    assert stalled.doing == doing and stalled.seconds >= STEP_S
    assert thread.pulse.is_stuck and thread.pulse.is_alive and thread.pulse.doing == doing
    block.go.set()
    assert events.wait(Recovered).seconds >= STEP_S
    thread.submit(AddRequest("after", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("after"))
    assert not thread.pulse.is_stuck and not events.of(EngineCrashed)


def test_a_load_replaces_a_stuck_worker(
    events: Recorder, thread: EngineThread, clock: Clock, config: EngineConfig, tiny_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    thread.submit(Load(config))
    events.wait(Loaded)
    block = Block(monkeypatch, "step")
    thread.submit(AddRequest("lost", PROMPT, GREEDY))
    assert block.begun.wait(WAIT_S)
    thread.submit(AddRequest("waits", PROMPT, GREEDY))
    pass_until_stalled(events, clock)
    thread.submit(Load(config))
    crashed = events.wait(EngineCrashed)
    assert crashed.is_restarting and crashed.error.kind == "EngineStuck"
    assert events.wait(RequestFailed).request_id == "waits"
    events.wait(Loaded, lambda loaded: loaded is not events.of(Loaded)[0])
    thread.submit(AddRequest("after", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("after"))
    assert tokens(events, "after") == tiny_models.reference(tiny_model, PROMPT, 4).token_ids
    abandoned = [one for one in threading.enumerate() if isinstance(one, EngineWorker)]
    assert len(abandoned) == 2
    block.go.set()  # it ends, and says nothing
    for one in abandoned:
        if one.is_stopping:
            one.join(WAIT_S)
    assert not any(one.is_alive() and one.is_stopping for one in abandoned)
    assert tokens(events, "lost") == [] and len(events.of(EngineCrashed)) == 1


def test_a_load_that_was_cancelled_behind_a_stuck_worker_stays_cancelled(
    events: Recorder, thread: EngineThread, clock: Clock, config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    thread.submit(Load(config))
    events.wait(Loaded)
    block = Block(monkeypatch, "step")
    thread.submit(AddRequest("lost", PROMPT, GREEDY))
    assert block.begun.wait(WAIT_S)
    thread.submit(Load(config))
    thread.cancel_load()
    pass_until_stalled(events, clock)
    thread.submit(Load(config))
    assert events.wait(LoadFailed).cancelled
    events.wait(Loaded, lambda loaded: loaded is not events.of(Loaded)[0])
    block.go.set()
    assert len(events.of(LoadFailed)) == 1 and len(events.of(Loaded)) == 2


def test_a_thread_that_dies_is_a_crash_and_the_next_load_serves(
    events: Recorder, config: EngineConfig, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = EngineThread(events, look_s=600)  # it is woken
    thread.start()
    thread.submit(Load(config))
    events.wait(Loaded)

    def dies(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(LLMEngine, "inspect_block", dies)
    monkeypatch.setattr(EngineWorker, "_crash", dies)
    thread.submit(InspectBlock(0))
    crashed = events.wait(EngineCrashed)
    assert crashed.error.kind == "EngineDied" and not crashed.is_restarting
    monkeypatch.undo()
    thread.submit(Load(config))
    thread.submit(AddRequest("after", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("after"))
    assert tokens(events, "after") == tiny_models.reference(tiny_model, PROMPT, 4).token_ids
    assert len(events.of(EngineCrashed)) == 1
    assert thread.stop(120)


CRASHED = EngineCrashed(ErrorInfo("it hangs"), "")


def replace_meanwhile(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]
) -> threading.Thread:
    """Replaces the worker of a thread, while another thread does something."""
    other = threading.Thread(target=do)
    plain = EngineWorker.abandon

    def abandon(worker: EngineWorker) -> Any:
        left = plain(worker)
        other.start()
        other.join(0.1)  # it has to wait for the next worker
        return left

    monkeypatch.setattr(EngineWorker, "abandon", abandon)
    with thread._lock:
        thread._replace(CRASHED)
    return other


def test_commands_keep_their_order_while_a_worker_is_replaced(
    events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = EngineThread(events)
    for key in "ab":
        thread.submit(CountTokens(key, "text"))
    sender = replace_meanwhile(
        thread, monkeypatch, lambda: thread.submit(CountTokens("late", "text"))
    )
    events.wait(TokensCounted, lambda event: event.key == "late")
    assert [event.key for event in events.of(TokensCounted)] == ["a", "b", "late"]
    assert events.events[0] == CRASHED
    sender.join(WAIT_S)
    assert thread.stop(120)


def test_no_worker_is_left_by_a_stop_while_one_is_replaced(
    events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = EngineThread(events)
    workers = {one for one in threading.enumerate() if isinstance(one, EngineWorker)}
    stopper = replace_meanwhile(thread, monkeypatch, thread.stop)
    stopper.join(WAIT_S)
    assert {one for one in threading.enumerate() if isinstance(one, EngineWorker)} == workers


def test_stopping_does_not_wait_for_a_stuck_worker(
    events: Recorder, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = EngineThread(events)
    thread.start()
    thread.submit(Load(config))
    events.wait(Loaded)
    block = Block(monkeypatch, "step")
    thread.submit(AddRequest("lost", PROMPT, GREEDY))
    assert block.begun.wait(WAIT_S)
    assert not thread.stop(0.05)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    block.go.set()
    assert thread.stop(120)
