"""The thread that owns the engine: serves commands and runs steps. See `EngineThread`.

Each command and each step is a beat of `heartbeat`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from engine import messages as m
from engine.errors import (
    ErrorInfo,
    describe,
)
from engine.heartbeat import (
    COMMAND_S,
    FIRST_STEP_S,
    SLOW_S,
    STEP_S,
    Heartbeat,
)
from engine.intake import Counted, Encoded, Intake
from engine.served_engine import EngineFactory, ServedEngine, say

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)

_UNTOLD = m.EngineCrashed(
    ErrorInfo("The engine crashed. Out of memory while reporting the error.",
              "Close other programs, then restart the engine.", "MemoryError"),
    "",
)  # fmt: skip
"""Made in advance, for a crash that leaves no memory to describe it."""


class Submitted(NamedTuple):
    """A command in the queue of a worker."""

    command: m.Command | m.EngineCrashed | Encoded | Counted
    at: float
    """A request arrives when it is sent, not after the step of then."""
    cancel: threading.Event
    """Of this load or change of settings alone."""


class EngineWorker(threading.Thread):
    """Serves commands and runs steps until `stop`, or until it dies. `on_end` is called after
    `has_died` or `has_ended` was set. `factory` is replaced in tests."""

    def __init__(
        self,
        on_event: Callable[[m.Event], None],
        on_end: Callable[[], None],
        heartbeat: Heartbeat,
        *,
        snapshot_interval_s: float,
        name: str,
        factory: EngineFactory,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.heartbeat = heartbeat
        self.has_died = self.has_ended = False
        self._emit = on_event
        self._on_end = on_end
        self._interval = snapshot_interval_s
        self._commands: queue.SimpleQueue[Submitted] = queue.SimpleQueue()
        self._cancels: set[threading.Event] = set()  # of loads and changes that have not ended
        self._lock = threading.Lock()  # of these
        self._stopping = threading.Event()
        emit = lambda event: self._emit(event)  # nothing any more, once it is abandoned
        self._intake = Intake(emit, self.submit)
        self._served = ServedEngine(emit, self._intake.end, heartbeat, self._stopping, factory)
        self._last_snapshot = 0.0
        self._stale = False  # something changed since the last snapshot
        self._is_first = False  # a request's first token came with the last step

    # -- called from any thread -------------------------------------------------------------

    def submit(self, command: m.Command | m.EngineCrashed | Encoded | Counted) -> None:
        """EngineCrashed: report it, in its turn."""
        self.take_over(Submitted(command, time.perf_counter(), threading.Event()))

    def take_over(self, submitted: Submitted) -> None:
        """Serve what another worker has not served."""
        if isinstance(submitted.command, (m.Load, m.Reconfigure)):
            with self._lock:
                self._cancels.add(submitted.cancel)
        self._commands.put(submitted)

    def cancel_load(self) -> None:
        """Cancel the loads and changes of settings submitted so far; later ones run."""
        with self._lock:
            for cancel in self._cancels:
                cancel.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Abort everything and end the thread, as soon as it can. Returns at once."""
        self._stopping.set()
        self.cancel_load()
        self.submit(m.Stop())

    def abandon(self) -> list[Submitted]:
        """Stop a stuck or dead thread: it emits no more events. Returns what it has not served."""
        self._emit = lambda event: None
        left = []
        with suppress(queue.Empty):
            while True:
                submitted = self._commands.get_nowait()
                if not isinstance(submitted.command, (Encoded, Counted)):
                    left.append(submitted)
        with self._lock:  # what was cancelled stays so, and nothing else is
            self._cancels.difference_update(submitted.cancel for submitted in left)
        self.stop()
        return left

    # -- the thread -------------------------------------------------------------------------

    @property
    def _engine(self) -> LLMEngine | None:
        return self._served.engine

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except BaseException as error:  # a panic in native code is no Exception
                    with self.heartbeat.during("crash", SLOW_S):
                        self._crash(error)
        except BaseException:
            log.exception("the engine's thread died")
            self.has_died = not self._stopping.is_set()
            self._on_end()
        with self.heartbeat.during("stop", SLOW_S):
            self._served.close()
        self.has_ended = True
        self._on_end()

    def _turn(self) -> None:
        self._serve_commands()
        if not self._stopping.is_set():
            self._step()
            with self.heartbeat.during("snapshot", COMMAND_S):
                self._publish()

    def _serve_commands(self) -> None:
        """Handle queued commands; when idle, wait for the next one."""
        busy = self._engine is not None and self._engine.has_unfinished
        try:
            waits = not (busy or self._stale)
            while waits and self._commands.empty() and self._uses_idle_time():
                pass
            submitted = self._commands.get() if waits else self._commands.get_nowait()
            while True:
                self._handle(submitted)
                submitted = self._commands.get_nowait()
        except queue.Empty:
            pass

    def _uses_idle_time(self) -> bool:
        return self._engine is not None and self._engine.use_idle_time()

    def _handle(self, submitted: Submitted) -> None:
        self._stale = True
        command, at, cancel = submitted
        doing, allowed_s = _NAMES.get(type(command), _OTHER)
        try:
            with self.heartbeat.during(doing, allowed_s):
                self._serve(command, at, cancel)
        finally:
            with self._lock:
                self._cancels.discard(cancel)

    def _serve(
        self,
        command: m.Command | m.EngineCrashed | Encoded | Counted,
        at: float,
        cancel: threading.Event,
    ) -> None:
        match command:
            case m.Load():
                self._served.load(command.config, cancel)
            case m.Unload():
                self._served.close()
                self._emit(m.Unloaded())
            case m.AddRequest():
                self._intake.add(self._engine, command, at)
            case m.Abort():
                if not self._intake.abort(command.request_id) and self._engine is not None:
                    self._engine.abort(command.request_id)
            case Encoded():
                self._intake.encoded(self._engine, command)
            case m.Reconfigure():
                self._served.reconfigure(command, cancel)
            case m.InspectBlock(block):
                details = None if self._engine is None else self._engine.inspect_block(block)
                self._emit(m.BlockInspected(block, details))
            case m.MeasurePeaks():
                self._emit(self._served.measure_peaks())
            case m.ProfileSteps(num_steps):
                self._served.profile.begin(self._engine, num_steps)
            case m.CountTokens():
                self._intake.count(self._engine, command)
            case Counted():
                self._intake.counted(command)
            case m.EngineCrashed():
                self._emit(command)
            case m.Stop():
                self._stopping.set()

    def _step(self) -> None:
        engine = self._engine
        if engine is None or not engine.has_unfinished:
            self._served.profile.end()
            return
        known, shrunk = engine.model_info.notices, engine.times_shrunk
        with self.heartbeat.during("step", STEP_S):
            events = self._served.profile.step(engine)
            self._stale = True
            self._is_first = any(event.is_first for event in events)
            for event in events:
                say(self._emit, event)
        if engine.model_info.notices is not known:  # it had to change something by itself
            text = engine.model_info.notices[-1]
            log.warning(text)
            is_smaller = engine.times_shrunk != shrunk
            times = engine.times_shrunk if is_smaller else engine.times_not_async
            self._emit(m.MadeRoom(text, engine.model_info, engine.plan, times, is_smaller))

    def _publish(self) -> None:
        """A snapshot, at most one per interval; the last one before idling is never left out. It
        does not take the interpreter from a first token on its way out: then the next step has it.
        """
        engine = self._engine
        if engine is None or not self._stale:
            self._stale = False
            return
        now = time.perf_counter()
        idle = not engine.has_unfinished
        since = now - self._last_snapshot
        if idle or since >= self._interval * (2 if self._is_first else 1):
            self._last_snapshot = now
            self._stale = False
            self._emit(m.SnapshotEvent(engine.snapshot()))

    def _crash(self, error: BaseException) -> None:
        """Drop the engine. Requests in flight are lost; the thread waits for a Load."""
        engine = self._served.let_go()
        self._intake.drop()
        try:
            trace = "".join(traceback.format_exception(error))
            event = m.EngineCrashed(describe(error), trace)
        except BaseException:  # no memory for the words
            event = _UNTOLD
        try:
            self._emit(event)
        except BaseException:
            log.exception("Reporting an engine crash failed: %s", event.error.cause)
        if engine is not None:
            self._served.shut_down(engine)

_OTHER = ("command", COMMAND_S)
_NAMES: dict[type, tuple[str, float]] = {
    m.Load: ("loading a model", SLOW_S), m.Unload: ("unloading", SLOW_S),
    m.Reconfigure: ("changing settings", SLOW_S), m.MeasurePeaks: ("measuring", FIRST_STEP_S),
    m.AddRequest: ("adding a request", COMMAND_S), Encoded: ("adding a request", COMMAND_S),
    m.Abort: ("aborting a request", COMMAND_S), m.InspectBlock: ("inspecting a block", COMMAND_S),
    m.ProfileSteps: ("profiling", FIRST_STEP_S), m.CountTokens: ("counting tokens", COMMAND_S),
    m.Stop: ("stopping", SLOW_S),
}  # fmt: skip
"""What a command is called, and how long it may take without progress."""
