"""An engine's process that hangs so that it cannot report it: its window sees it from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from app.link import child_engine, child_watch
from app.link.child_process import ChildProcess
from app.link.child_watch import Activity, ChildWatch
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.heartbeat import COMMAND_S, LOOK_S, SLOW_S, Pulse
from tests.app.link.test_process import (
    ENDS_WITH_US,
    LOAD,
    SLOW,
    Driven,
    command,
    drive,
    is_gone,
    until,
)

__all__ = ["drive"]
QUICK_S = 0.02
ANSWER = m.LoadFailed(ErrorInfo("No such folder.", ""))
Drive = Callable[..., Driven]


# -- what counts as a beat ------------------------------------------------------------------------


class Scene:
    """A process that is looked at each LOOK_S of a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_active = False
        self.heard_at = 0.0
        self.watch = ChildWatch(7, lambda: self.is_active, lambda: self.now)

    def serve(self) -> None:
        self.heard_at = self.now
        self.watch.heard(ANSWER)

    def seen(self, seconds: float, *, hears: bool = False) -> list[object]:
        events = []
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            if hears:
                self.heard_at = self.now
            events.append(self.watch.look(self.heard_at))
        return [event for event in events if event is not None]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_silent_process_is_stalled_within_5_s_and_recovers(scene: Scene) -> None:
    scene.serve()
    assert scene.seen(100, hears=True) == [] and scene.watch.pulse is None
    scene.is_active = True  # a hang may compute
    (stalled,) = scene.seen(5)
    assert isinstance(stalled, m.Stalled) and COMMAND_S <= stalled.seconds <= 5
    assert scene.watch.stalled == stalled
    assert scene.watch.pulse == Pulse(stalled.doing, 5.0, is_stuck=True)
    (again,) = scene.seen(4)  # when the wait has doubled
    assert isinstance(again, m.Stalled) and again.seconds == 2 * stalled.seconds
    (recovered,) = scene.seen(LOOK_S, hears=True)
    assert isinstance(recovered, m.Recovered) and recovered.seconds >= again.seconds
    assert scene.watch.stalled is None and scene.watch.pulse is None


def test_a_beat_that_was_not_looked_at_yet_is_no_hang(scene: Scene) -> None:
    scene.serve()
    scene.seen(5)
    scene.watch._beat(scene.now)  # as within `look`
    assert scene.watch.pulse is None


@pytest.mark.parametrize("begins", [None, m.Load, m.LoadProgress])
def test_a_load_may_be_silent_while_the_process_computes_or_reads(
    scene: Scene, begins: type | None
) -> None:
    if begins is not None:
        scene.serve()
        scene.seen(1)
    if begins is m.Load:
        scene.watch.sent(LOAD)
    elif begins is m.LoadProgress:
        scene.watch.heard(m.LoadProgress("reading", 0, 0))
    scene.is_active = True
    assert scene.seen(SLOW_S - 10) == []
    scene.is_active = False
    (stalled,) = scene.seen(5)
    assert isinstance(stalled, m.Stalled)
    scene.is_active = True
    assert isinstance(scene.seen(LOOK_S)[0], m.Recovered)
    assert isinstance(scene.seen(10)[0], m.Stalled), "SLOW_S are over"


def test_an_engine_that_reported_itself_stays_stalled_when_its_process_answers_again(
    scene: Scene,
) -> None:
    scene.serve()
    scene.seen(1, hears=True)
    own = m.Stalled("step of 9 tokens", 4.0)
    scene.watch.heard(own)
    assert scene.seen(3, hears=True) == [] and scene.watch.stalled == own
    assert scene.watch.pulse == Pulse("step of 9 tokens", 7.0, is_stuck=True)
    (silent,) = scene.seen(5)
    assert silent != own and scene.seen(LOOK_S, hears=True) == [own]
    scene.watch.heard(m.Recovered(20.0))
    assert scene.watch.stalled is None and scene.watch.pulse is None


def test_a_process_that_computes_or_waits_is_told_from_outside() -> None:
    own = Activity(os.getpid())
    own.has_moved()
    until(own.has_moved)  # this very loop
    child = ChildProcess(command=command(ENDS_WITH_US))
    try:
        assert child.wait_ready(60.0) is not None
        other = Activity(child.pid)
        until(lambda: not other.has_moved())
    finally:
        child.end(60.0)
    assert Activity(child.pid).has_moved(), "not reported"


# -- what becomes of the process ------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is told at once, whatever the process does."""
    monkeypatch.setattr(child_watch, "COMMAND_S", QUICK_S)
    monkeypatch.setattr(Activity, "has_moved", lambda self: False)


def restarted(driven: Driven) -> m.EngineCrashed:
    until(lambda: driven.of(m.EngineCrashed))
    (crash,) = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed)
    assert crash.is_restarting and crash.error.kind == "EngineStuck"
    return crash


@pytest.mark.usefixtures("quick")
def test_a_load_kills_a_silent_process_and_starts_another(drive: Drive) -> None:
    driven = drive(ENDS_WITH_US, QUICK_S)
    line, pid = driven.load(), driven.engine.pid
    assert pid is not None
    line.pulse = Pulse("step of 1 token", 0.1)
    until(lambda: line.last_heard_at > 0 and driven.engine.pulse == line.pulse)
    line.is_silent = True
    until(lambda: driven.engine.pulse != line.pulse)
    pulse = driven.engine.pulse
    assert pulse is not None and pulse.is_stuck and str(pid) in pulse.doing
    driven.engine.submit(m.AddRequest("lost", "hello"))
    assert driven.lines == [line] and len(line.commands) == 2
    second = driven.load()
    restarted(driven)
    assert line.is_stopped and is_gone(pid) and driven.engine.pid not in (None, pid)
    assert len(line.commands) == 2 and second.commands == [LOAD]


@pytest.mark.usefixtures("quick")
def test_a_process_that_was_silent_goes_on(drive: Drive) -> None:
    driven = drive(ENDS_WITH_US, QUICK_S)
    line = driven.load()
    line.is_silent = True
    until(lambda: driven.of(m.Stalled))
    line.is_silent = False
    until(lambda: driven.of(m.Recovered))


@pytest.mark.usefixtures("quick")
def test_an_engine_that_reported_itself_is_replaced_with_its_process(drive: Drive) -> None:
    driven = drive(ENDS_WITH_US, LOOK_S)
    line, pid = driven.load(), driven.engine.pid
    line.on_event(m.Stalled("step of 9 tokens", 6.0))
    assert driven.load() is not line
    assert "step of 9 tokens" in restarted(driven).error.cause
    assert driven.engine.pid not in (None, pid)


@pytest.mark.usefixtures("quick")
def test_a_process_that_stands_still_at_its_start_is_told_and_replaced(drive: Drive) -> None:
    driven = drive(SLOW, QUICK_S)
    driven.engine.submit(LOAD)
    driven.engine.submit(m.AddRequest("r", "hello"))
    until(lambda: driven.of(m.Stalled))
    first = driven.engine.pid
    other = m.Load(EngineConfig(model="/models/other"))
    driven.engine.submit(other)
    restarted(driven)
    until(lambda: driven.engine.pid not in (None, first))
    (failed,) = driven.of(m.RequestFailed)
    assert isinstance(failed, m.RequestFailed) and failed.request_id == "r"
    assert list(driven.engine._waiting) == [other]
    driven.engine.cancel_load()
    until(lambda: driven.of(m.LoadFailed))


def test_an_end_before_the_ready_line_is_told_though_another_process_holds_its_output(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_engine, "START_S", 600.0)
    leaves = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "sys.exit(3)"
    )
    driven = drive(leaves, QUICK_S)
    driven.engine.submit(LOAD)
    until(lambda: driven.of(m.EngineCrashed))
    (crash,) = driven.of(m.EngineCrashed)
    assert isinstance(crash, m.EngineCrashed) and crash.error.kind == "ProcessNotStarted"


HOLDS = """
import ctypes
import app.cli.child as child
child.EngineThread.submit = lambda self, command: ctypes.PyDLL(None).sleep(600)
child.main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="libc by its own name")
def test_a_real_process_that_hangs_with_the_interpreter_is_seen_and_replaced() -> None:
    events: list[object] = []
    engine = child_engine.IsolatedEngine(events.append, command=command(HOLDS))
    engine.start()
    try:
        engine.submit(LOAD)
        until(lambda: any(isinstance(event, m.Stalled) for event in list(events)))
        pid = engine.pid
        assert pid is not None and engine.pulse is not None and engine.pulse.is_stuck
        engine.submit(LOAD)
        until(lambda: any(isinstance(event, m.EngineCrashed) for event in list(events)))
        assert is_gone(pid)
        until(lambda: engine.pid not in (None, pid))
    finally:
        assert engine.stop(60.0)
