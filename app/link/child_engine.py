"""The engine in its own process: starts it, attaches to it, reports its end."""

from __future__ import annotations

import logging
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from app.clients.target import Event, LinkChanged, LinkState, OnEvent, Target
from app.link.child_crash import IN_THIS, RESTART, crash_of
from app.link.child_process import (
    COMMAND,
    FAULT_VARIABLE,
    ChildProcess,
    Ready,
    fault_in,
    new_fault_file,
)
from app.link.child_watch import ChildWatch
from app.link.engine_handle import EngineThreadLike
from app.server.attach_permissions import refused
from engine import messages
from engine.errors import ErrorInfo, describe
from engine.heartbeat import LOOK_S, Pulse, unresponsive
from engine.units import duration_text

log = logging.getLogger(__name__)

KEY_VARIABLE = "INFERDECK_ENGINE_KEY"
START_S = 120.0
"""Importing torch and transformers takes seconds, on a cold disk many."""
END_S = 5.0
_LAST_DATA_S = 0.5
_OF_A_LOAD = (messages.LoadProgress, messages.Loaded, messages.LoadFailed)
NOT_RUNNING = ErrorInfo("The engine process is not running.", "Open a model first.", "NotRunning")


class LineLike(EngineThreadLike, Protocol):
    """What `IsolatedEngine` needs of `app.clients.attached.RemoteEngine`."""

    @property
    def heard_at(self) -> float: ...
    @property
    def pulse(self) -> Pulse | None: ...


class _Replaced(NamedTuple):
    """A process that was killed for a Load, and the commands that it did not get."""

    stalled: messages.Stalled
    left: list[messages.Command]


def remote_engine(on_event: OnEvent, target: Target) -> LineLike:
    from app.clients.attached import RemoteEngine

    return RemoteEngine(on_event, target)


class IsolatedEngine(threading.Thread):
    """An EngineThreadLike. `on_event` is called from its own threads.

    A process that is stuck (see `ChildWatch`) is reported as Stalled, and the next Load kills it.
    `command`, `connect` and `look_s` are replaced in tests.
    """

    def __init__(
        self,
        on_event: OnEvent,
        *,
        command: Sequence[str] = COMMAND,
        connect: Callable[[OnEvent, Target], LineLike] = remote_engine,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__(name="isolated-engine", daemon=True)
        self._on_event, self._command, self._connect = on_event, command, connect
        self._look_s = look_s
        self._changed = threading.Condition()
        self._waiting: deque[messages.Command] = deque()
        self._child: ChildProcess | None = None
        self._fault = Path()  # where the process writes, should native code fail
        self._watch: ChildWatch | None = None  # of this process
        self._replaced: _Replaced | None = None  # this process
        self._line: LineLike | None = None  # where commands go at once, unless it is replaced
        self._is_stopping = False
        self._cancelled: list[messages.Command] = []  # loads that wait for a process
        self._line_is_gone = threading.Event()
        self._given_up = ""  # why we ended the process ourselves
        self._has_spoken = False  # the engine of this process, of a load

    # -- called from any thread -------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.is_running else None

    @property
    def pulse(self) -> Pulse | None:
        """None: not reported, as without a process."""
        watch, line = self._watch, self._line
        if watch is not None and (pulse := watch.pulse) is not None:
            return pulse
        return line.pulse if line is not None else None

    def submit(self, command: messages.Command) -> None:
        with self._changed:
            if isinstance(command, messages.Load):
                self._kill_stuck()
            if self._line is not None and self._replaced is None:
                self._send(self._line, command)
                return
            self._waiting.append(command)
            self._changed.notify()

    def cancel_load(self) -> None:
        with self._changed:
            if self._line is not None and self._replaced is None:
                self._line.cancel_load()
                return
            self._cancelled = [one for one in self._waiting if isinstance(one, messages.Load)]
            child = self._child if self._cancelled else None
        if child is not None:
            child.kill()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End the process, then the thread. True if both ended within the time."""
        with self._changed:
            self._is_stopping = True
            line, self._line = self._line, None
            child = self._child
            self._changed.notify()
        if child is not None:
            child.end(timeout_s / 2)  # its last events still arrive
        if line is not None:
            line.stop(timeout_s=timeout_s / 4)
        if self.is_alive():
            self.join(timeout_s / 4)
        return not self.is_alive()

    def _kill_stuck(self) -> None:
        """Kill a process that does not answer; another one serves what comes now."""
        stalled = self._watch.stalled if self._watch is not None else None
        if stalled is not None and self._child is not None and self._replaced is None:
            self._replaced = _Replaced(stalled, list(self._waiting))
            self._waiting.clear()
            self._child.kill()

    def _send(self, line: LineLike, command: messages.Command) -> None:
        if self._watch is not None:
            self._watch.sent(command)
        line.submit(command)

    # -- the thread -------------------------------------------------------------------------

    @property
    def _is_cancelled(self) -> bool:
        """Whether the load for which the process is being started was cancelled."""
        first = self._waiting[0] if self._waiting else None
        return any(one is first for one in self._cancelled)

    def run(self) -> None:
        is_stopped = False
        while not is_stopped:
            try:
                is_stopped = self._run_process()
            except BaseException as error:
                log.exception("the thread of the engine process failed")
                child, self._child = self._child, None
                self._watch = self._replaced = None
                if child is not None:
                    child.kill()
                    child.end(END_S)
                with suppress(BaseException):  # the listener itself may be what fails
                    self._give_up(describe(error), "".join(traceback.format_exception(error)))

    def _run_process(self) -> bool:
        """Start a process for the next Load and serve it to its end. True after `stop`."""
        if not self._next_is_worth_a_process():
            return True
        child = self._launched()
        if child is not None:
            try:
                self._serve(child)
            finally:
                with self._changed:
                    self._line = self._watch = self._replaced = None
                self._child = None
                child.end(END_S)
        return False

    def _next_is_worth_a_process(self) -> bool:
        """Wait for a Load and answer everything else; False at the end."""
        while True:
            with self._changed:
                while not self._waiting and not self._is_stopping:
                    self._changed.wait()
                if self._is_stopping:
                    return False
                if isinstance(self._waiting[0], messages.Load):
                    return True
                command = self._waiting.popleft()
            self._answer_without_engine(command)

    def _launched(self) -> ChildProcess | None:
        """A process that accepts commands; None after a reported failure."""
        self._on_event(messages.LoadProgress("Starting the engine process", 0, 0))
        key = secrets.token_urlsafe(32)
        try:
            self._fault = new_fault_file()
            given = {KEY_VARIABLE: key, FAULT_VARIABLE: str(self._fault)}
            child = ChildProcess(given, self._command)
        except OSError as error:
            cause = f"The engine process did not start: {error.strerror or error}."
            self._give_up(ErrorInfo(cause, IN_THIS, "ProcessNotStarted"), "")
            return None
        with self._changed:
            self._child, self._watch = child, ChildWatch(child.pid)
            is_wanted = not (self._is_stopping or self._is_cancelled)
        ready = self._ready(child) if is_wanted else None
        if ready is None or not self._attach(ready, key):
            self._not_started(child)
            return None
        log.info("engine process started with PID %d", ready.pid)
        return child

    def _ready(self, child: ChildProcess) -> Ready | None:
        """Where it listens; None if it ended or timed out."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                return child.wait_ready(self._look_s)
            if not child.is_running:  # another process holds its output
                break
            self._look()
        return None

    def _look(self) -> None:
        watch, line = self._watch, self._line
        event = watch.look(line.heard_at if line is not None else 0.0) if watch else None
        if event is not None:
            self._on_event(event)

    def _not_started(self, child: ChildProcess) -> None:
        fault_in(self._fault)
        is_late = not child.ends_within(_LAST_DATA_S)  # else it has closed its pipes, and ends
        code = child.end(END_S)
        self._child = None
        if self._is_stopping:
            return
        if self._was_replaced(child.last_lines):
            return
        with self._changed:
            was_cancelled = self._is_cancelled
            gone, self._cancelled = list(map(id, self._cancelled)), []
            self._waiting = deque(one for one in self._waiting if id(one) not in gone)
        if was_cancelled:
            info = ErrorInfo("Loading was cancelled.", "", "LoadCancelled")
            for _ in gone:
                self._on_event(messages.LoadFailed(info, cancelled=True))
            return
        error = crash_of(code, child.last_lines, was_ready=False)
        if is_late:
            cause = f"The engine process did not respond for {duration_text(START_S)}."
            error = ErrorInfo(cause, error.remedy, error.kind)
        self._give_up(error, "\n".join(child.last_lines))

    def _was_replaced(self, printed: Sequence[str]) -> bool:
        """Whether the process, which has ended, was killed for a Load; if so, report it."""
        with self._changed:
            replaced, self._replaced, self._watch = self._replaced, None, None
        if replaced is None:
            return False
        error = unresponsive(replaced.stalled)
        log.error("%s", error.cause)
        self._on_event(messages.EngineCrashed(error, "\n".join(printed), is_restarting=True))
        for command in replaced.left:
            self._answer_without_engine(command)
        return True

    def _give_up(self, error: ErrorInfo, printed: str) -> None:
        """Fail the load that needed a process, and the commands queued behind it."""
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
        log.error("%s", error.cause)
        self._on_event(messages.EngineCrashed(error, printed))
        for command in waiting:
            self._answer_without_engine(command)

    def _attach(self, ready: Ready, key: str) -> bool:
        """Send commands to the process from now on. False if it is no longer needed."""
        self._line_is_gone.clear()
        self._given_up, self._has_spoken = "", False
        target = Target(f"http://127.0.0.1:{ready.port}", key, "engine process")
        line = self._connect(self._hand_on, target)
        line.start()
        with self._changed:
            is_needed = not (self._is_stopping or self._is_cancelled or self._replaced)
            if is_needed:
                while self._waiting:
                    self._send(line, self._waiting.popleft())
                self._line = line
        if not is_needed:  # without the lock: callers do not wait for it
            line.stop(timeout_s=END_S)
        return is_needed

    def _serve(self, child: ChildProcess) -> None:
        """Watch the process to its end; report why it ended if that was not requested."""
        while not child.closes_within(self._look_s):
            self._look()
        code = child.end(END_S)
        self._line_is_gone.wait(_LAST_DATA_S)  # what it had said is still read
        with self._changed:
            line, self._line = self._line, None
        if line is not None:
            line.stop(timeout_s=END_S)
        trace = fault_in(self._fault)
        printed = "\n".join([*child.last_lines, trace]).strip()
        if not (self._is_stopping or self._was_replaced([printed])):
            error = crash_of(code, child.last_lines, was_ready=True)
            if self._given_up:
                cause = f"Connection to the engine process lost: {self._given_up}"
                error = ErrorInfo(cause, RESTART, "LineClosed")
            log.error("%s", error.cause)
            self._on_event(messages.EngineCrashed(error, printed))

    def _answer_without_engine(self, command: messages.Command) -> None:
        """As an engine without a model."""
        if isinstance(command, messages.Unload):
            self._on_event(messages.Unloaded())
        elif not isinstance(command, messages.Load | messages.Abort):
            for answer in refused(command, NOT_RUNNING, loaded=None):
                self._on_event(answer)

    # -- the line's thread ------------------------------------------------------------------

    def _hand_on(self, event: Event) -> None:
        """Connection changes within this machine are hidden, unless it closed."""
        if not isinstance(event, LinkChanged):
            if self._watch is not None:
                self._watch.heard(event)
            # it greets with Unloaded, which must not answer the load
            self._has_spoken |= isinstance(event, _OF_A_LOAD)
            if self._has_spoken or not isinstance(event, messages.Unloaded):
                self._on_event(event)
            return
        if event.state in (LinkState.RECONNECTING, LinkState.CLOSED):
            self._line_is_gone.set()
        child = self._child
        if event.state is LinkState.CLOSED and event.words and child is not None:
            self._given_up = event.words
            child.kill()
