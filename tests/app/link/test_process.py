"""A child is started, heard and ended for sure, and whoever stands for it says what became of it.
The children here are a few lines of Python: no torch, no model."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from app.clients.target import Event, LinkChanged, LinkState, OnEvent, Target
from app.link import child_engine, child_process
from app.link.child_engine import IsolatedEngine
from app.link.child_process import MOST_FILES, ChildProcess, child_environment, new_fault_file
from engine import messages as m
from engine.config import EngineConfig
from engine.heartbeat import LOOK_S, Pulse
from engine.snapshot import FinishReason

WAIT_S = 60.0
LISTENS = """
import json, os, sys
print("chatter of a library", file=sys.stderr, flush=True)
print(json.dumps({"port": 1, "pid": os.getpid()}), flush=True)
"""
ENDS_WITH_US = LISTENS + "sys.stdin.read()"
STUBBORN = (
    LISTENS
    + """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
)
BROKEN = "import nothing_of_that_name"
SLOW = "import time; time.sleep(600)"
LOAD = m.Load(EngineConfig(model="/models/tiny"))


def command(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def until(when: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not when():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_a_child_is_heard_and_ends_with_its_stdin(caplog: pytest.LogCaptureFixture) -> None:
    logs = LISTENS + (
        "sys.path.insert(0, os.getcwd())\n"
        "import logging; from app.link.child_process import LogSender\n"
        "logging.getLogger().addHandler(LogSender())\n"
        "logging.getLogger('engine.child').warning('no drafts')\n"
        "sys.stdin.read()"
    )
    with caplog.at_level(logging.INFO):
        child = ChildProcess(command=command(logs))
        ready = child.wait_ready(WAIT_S)
        assert ready is not None and ready.pid == child.pid
        until(lambda: any(r.name == "engine.child" for r in caplog.records))
        assert child.end(WAIT_S) == 0
    assert child.last_lines == ["chatter of a library"]
    assert is_gone(child.pid)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere SIGTERM cannot be ignored")
def test_a_child_that_will_not_end_is_killed() -> None:
    child = ChildProcess(command=command(STUBBORN))
    assert child.wait_ready(WAIT_S) is not None
    assert child.end(0.4) == -9
    assert is_gone(child.pid)


def test_a_child_finds_this_program_and_no_other(tmp_path: object) -> None:
    known = child_environment({"A": "b"})
    assert known["A"] == "b" and known["PYTHONSAFEPATH"] == "1"
    first = known["PYTHONPATH"].split(os.pathsep)[0]
    assert os.path.isfile(os.path.join(first, "app", "__main__.py"))


class FakeLine:
    """In place of the stream: notes what it is given."""

    def __init__(self, on_event: OnEvent, target: Target) -> None:
        self.on_event, self.target = on_event, target
        self.commands: list[m.Command] = []
        self.num_cancelled = 0
        self.is_stopped = self.is_silent = False
        self.pulse: Pulse | None = None
        self.last_heard_at = 0.0  # as the engine read it

    @property
    def heard_at(self) -> float:
        if not self.is_silent:
            self.last_heard_at = time.perf_counter()
        return self.last_heard_at

    def start(self) -> None:
        self.on_event(LinkChanged(LinkState.LIVE, 0.0))

    def submit(self, command: m.Command) -> None:
        self.commands.append(command)

    def cancel_load(self) -> None:
        self.num_cancelled += 1

    def stop(self, timeout_s: float = 5.0) -> bool:
        self.is_stopped = True
        return True


class Driven:
    """An engine whose events are kept, and the lines that it made."""

    def __init__(self, code: str, look_s: float = LOOK_S) -> None:
        self.events: list[Event] = []
        self.lines: list[FakeLine] = []
        self.engine = IsolatedEngine(
            self.events.append, command=command(code), connect=self._connect, look_s=look_s
        )
        self.engine.start()

    def _connect(self, on_event: OnEvent, target: Target) -> FakeLine:
        self.lines.append(FakeLine(on_event, target))
        return self.lines[-1]

    def of(self, kind: type) -> list[Event]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def load(self) -> FakeLine:
        count = len(self.lines)
        self.engine.submit(LOAD)
        until(lambda: len(self.lines) > count and LOAD in self.lines[-1].commands)
        return self.lines[-1]


@pytest.fixture
def drive() -> Iterator[Callable[[str], Driven]]:
    made: list[Driven] = []
    before = set(psutil.Process().children())

    def one(code: str, look_s: float = LOOK_S) -> Driven:
        made.append(Driven(code, look_s))
        return made[-1]

    yield one
    for driven in made:
        driven.engine.stop(10.0)
    until(lambda: "isolated-engine" not in [t.name for t in threading.enumerate()])
    until(lambda: not set(psutil.Process().children()) - before)


def test_commands_wait_for_the_process_and_keep_their_order(
    drive: Callable[[str], Driven],
) -> None:
    driven = drive(ENDS_WITH_US)
    given: list[m.Command] = [LOAD, *(m.Abort(f"r{n}") for n in range(20))]
    for command_given in given:
        driven.engine.submit(command_given)
    until(lambda: driven.lines and len(driven.lines[0].commands) == len(given))
    line = driven.lines[0]
    assert line.commands == given and len(line.target.api_key or "") > 30
    driven.engine.cancel_load()
    assert line.num_cancelled == 1
    pid = driven.engine.pid
    assert pid is not None
    assert driven.engine.stop(10.0) and line.is_stopped and is_gone(pid)
    assert not driven.of(m.EngineCrashed)


def test_without_a_process_commands_are_answered(drive: Callable[[str], Driven]) -> None:
    driven = drive(ENDS_WITH_US)
    asked: list[m.Command] = [m.AddRequest("r", "hello"), m.CountTokens("k", "x"), m.Unload()]
    for command_given in asked:
        driven.engine.submit(command_given)
    until(lambda: len(driven.events) == 3)
    failed, counted, unloaded = driven.events
    assert isinstance(failed, m.RequestFailed) and failed.error.kind == "NotRunning"
    assert counted == m.TokensCounted("k", None) and unloaded == m.Unloaded()
    assert driven.engine.pid is None


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_child_is_told_of_and_the_next_load_starts_another(
    drive: Callable[[str], Driven],
) -> None:
    driven = drive(ENDS_WITH_US)
    first = driven.load()
    pid = driven.engine.pid
    assert pid is not None
    driven.engine._fault.write_text("Fatal Python error: here", encoding="utf-8")
    os.kill(pid, 9)
    until(lambda: driven.of(m.EngineCrashed))
    [crash] = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed)
    assert "SIGKILL" in crash.error.cause and "out of memory" in crash.error.cause
    assert "chatter of a library" in crash.traceback and "here" in crash.traceback
    assert first.is_stopped
    driven.engine.submit(m.AddRequest("r", "hello"))
    until(lambda: driven.of(m.RequestFailed))
    second = driven.load()
    assert second is not first and second.target.api_key != first.target.api_key
    assert driven.engine.pid not in (None, pid)


def test_of_the_files_of_faults_the_last_few_are_kept() -> None:
    for n in range(MOST_FILES + 3):
        new_fault_file().with_name(f"engine-2026{n:02}.fault").touch()
    assert len(list(new_fault_file().parent.glob("engine-*.fault"))) == MOST_FILES - 1


def test_a_child_that_cannot_start_says_why(drive: Callable[[str], Driven]) -> None:
    driven = drive(BROKEN)
    driven.engine.submit(LOAD)
    driven.engine.submit(m.AddRequest("r", "hello"))
    until(lambda: driven.of(m.RequestFailed))
    [crash] = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed)
    assert crash.error.kind == "ProcessNotStarted"
    assert "nothing_of_that_name" in crash.error.cause and "Traceback" in crash.traceback
    assert not driven.lines


def test_a_load_can_be_cancelled_while_the_process_starts(
    drive: Callable[[str], Driven],
) -> None:
    driven = drive(SLOW)
    driven.engine.submit(LOAD)
    until(lambda: driven.engine.pid is not None)
    driven.engine.cancel_load()
    until(lambda: driven.of(m.LoadFailed))
    [failed] = driven.of(m.LoadFailed)
    assert isinstance(failed, m.LoadFailed) and failed.cancelled
    assert not driven.of(m.EngineCrashed)


def test_a_cancel_leaves_the_load_after_it(drive: Callable[[str], Driven]) -> None:
    driven = drive(SLOW)
    driven.engine.submit(LOAD)
    until(lambda: driven.engine.pid is not None)
    first = driven.engine.pid
    driven.engine.cancel_load()
    driven.engine.submit(m.Load(LOAD.config.replace(max_num_seqs=2)))
    until(lambda: driven.engine.pid not in (None, first))
    assert len(driven.of(m.LoadFailed)) == 1 and not driven.of(m.EngineCrashed)
    driven.engine.cancel_load()
    until(lambda: len(driven.of(m.LoadFailed)) == 2)


@pytest.mark.slow
def test_it_can_be_stopped_while_the_process_starts(drive: Callable[[str], Driven]) -> None:
    driven = drive(SLOW)
    driven.engine.submit(LOAD)
    until(lambda: driven.engine.pid is not None)
    pid = driven.engine.pid
    assert pid is not None
    assert driven.engine.stop(12.0) and is_gone(pid)  # it is asked, then killed
    assert not driven.of(m.EngineCrashed) and not driven.of(m.LoadFailed)


def test_a_line_that_is_closed_for_good_ends_the_child(drive: Callable[[str], Driven]) -> None:
    driven = drive(ENDS_WITH_US)
    line = driven.load()
    event = m.OutputEvent("r", "x", (1,), 0.0, 1, 1, 0, finish_reason=FinishReason.STOP)
    line.on_event(event)
    assert driven.events[-1] == event
    line.on_event(LinkChanged(LinkState.CLOSED, 0.0, "another version"))
    until(lambda: driven.of(m.EngineCrashed))
    [crash] = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed) and "another version" in crash.error.cause
    assert driven.engine.pid is None


def test_callers_do_not_wait_while_a_line_that_is_not_needed_ends(
    drive: Callable[[str], Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    driven, answered = drive(ENDS_WITH_US), []

    def stop(line: FakeLine, timeout_s: float = 5.0) -> bool:
        caller = threading.Thread(target=driven.engine.submit, args=(m.Unload(),), daemon=True)
        caller.start()
        caller.join(WAIT_S)
        answered.append(not caller.is_alive())
        return True

    monkeypatch.setattr(FakeLine, "start", lambda line: driven.engine.cancel_load())
    monkeypatch.setattr(FakeLine, "stop", stop)
    driven.engine.submit(LOAD)
    until(lambda: driven.of(m.LoadFailed))
    assert answered == [True]


# -- a process that SIGKILL does not end ----------------------------------------------------------


@pytest.fixture
def undying(drive: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals have no effect, as in uninterruptible sleep."""
    before = set(psutil.Process().children())
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda process, number: None)
    monkeypatch.setattr(child_process, "KILL_S", 0.2)
    monkeypatch.setattr(child_engine, "END_S", 0.2)
    yield
    for process in set(psutil.Process().children()) - before:
        process.kill()
        process.wait(WAIT_S)  # the engine does not


@pytest.mark.usefixtures("undying")
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_that_cannot_be_killed_is_left_behind(
    drive: Callable[[str, float], Driven],
) -> None:
    driven = drive(STUBBORN, 0.02)
    line, pid = driven.load(), driven.engine.pid
    assert pid is not None
    line.on_event(m.Stalled("step of 9 tokens", 6.0))
    assert driven.load() is not line and line.is_stopped
    [crash] = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed) and crash.error.kind == "EngineStuck"
    assert driven.engine.pid not in (None, pid) and not is_gone(pid)
    driven.engine.stop(0.4)
    until(lambda: not driven.engine.is_alive())


@pytest.mark.usefixtures("undying")
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_that_closes_its_output_and_does_not_end_is_reported(
    drive: Callable[[str, float], Driven],
) -> None:
    driven = drive(STUBBORN.replace("time.sleep", "os.close(1); time.sleep"), 0.02)
    driven.load()
    until(lambda: driven.of(m.EngineCrashed))
    [crash] = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed) and crash.error.kind == "ProcessLost"
    assert driven.engine.pid is None
