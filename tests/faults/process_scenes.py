"""The engine's own process, when a fault strikes it or what speaks to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.clients.target import LinkChanged, LinkState, OnEvent, Target
from app.link.child_engine import IsolatedEngine
from engine import messages as m
from engine.config import EngineConfig
from tests.faults.bench import WAIT_S, nothing_left
from tests.faults.fault import Fault

CHILD = """
import json, os, sys
print("chatter of a library", file=sys.stderr, flush=True)
print(json.dumps({"port": 1, "pid": os.getpid()}), flush=True)
sys.stdin.read()
"""
LOAD = m.Load(EngineConfig(model="/models/tiny"))


class Line:
    """In place of the connection: notes the commands that it is given."""

    def __init__(self, on_event: OnEvent, target: Target) -> None:
        self.on_event = on_event
        self.commands: list[m.Command] = []
        self.pulse = None

    @property
    def heard_at(self) -> float:
        return time.perf_counter()

    def start(self) -> None:
        self.on_event(LinkChanged(LinkState.LIVE, 0.0))

    def submit(self, command: m.Command) -> None:
        self.commands.append(command)

    def cancel_load(self) -> None:
        pass

    def stop(self, timeout_s: float = 5.0) -> bool:
        return True


def _until(when: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not when():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def started(fault: Fault, folder: Path) -> None:
    """A Load starts the process. Where that fails it is told, and the next Load starts one."""
    events: list[Any] = []
    lines: list[Line] = []

    def connect(on_event: OnEvent, target: Target) -> Line:
        lines.append(Line(on_event, target))
        return lines[-1]

    command = (sys.executable, "-c", CHILD)
    engine = IsolatedEngine(events.append, command=command, connect=connect)
    engine.start()

    def crashes() -> list[Any]:
        return [event for event in events if isinstance(event, m.EngineCrashed)]

    def is_loaded() -> bool:
        return any(LOAD in line.commands for line in lines)

    if fault.kind != "kill":
        fault.arm()
    engine.submit(LOAD)
    _until(lambda: is_loaded() or crashes(), "neither started nor failed")
    if fault.kind == "kill":
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        _until(crashes, "no crash is told")
    else:
        _until(lambda: fault.hits, "the point was not reached")
        time.sleep(0.1)
    for crash in crashes():
        fault.check_words(crash.error)
    if crashes():
        lines.clear()
        engine.submit(LOAD)
        _until(is_loaded, "no process for the next Load")
    assert engine.stop(WAIT_S), "the thread did not end"
    assert engine.pid is None
    nothing_left()
