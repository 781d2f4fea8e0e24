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
from engine.config import EngineConfig
from engine.errors import (
    DraftModelError,
    EngineLostError,
    ErrorInfo,
    InferdeckError,
    LoadCancelled,
    OutOfMemoryError,
    describe,
    is_interrupt,
    let_go,
)
from engine.hardware.devices import CPU
from engine.hardware.peaks import peaks_for
from engine.heartbeat import (
    COMMAND_S,
    FIRST_STEP_S,
    SLOW_S,
    SLOWEST_FLOPS,
    STEP_S,
    Heartbeat,
)
from engine.intake import Counted, Encoded, Intake, replaced_by
from engine.snapshot import FinishReason

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)

EngineFactory = Callable[
    [EngineConfig, Callable[[str, int, int], None], Callable[[], bool]], "LLMEngine"
]
PROGRESS_INTERVAL_S = 0.05
_UNTOLD = m.EngineCrashed(
    ErrorInfo("The engine crashed. Out of memory while reporting the error.",
              "Close other programs, then restart the engine.", "MemoryError"),
    "",
)  # fmt: skip
"""Made in advance, for a crash that leaves no memory to describe it."""


def make_engine(
    config: EngineConfig,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> LLMEngine:
    # Imported here, on the engine's thread: torch and transformers take seconds.
    from engine.llm_engine import LLMEngine

    return LLMEngine(config, progress, cancelled)


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
        self._factory = factory
        self._commands: queue.SimpleQueue[Submitted] = queue.SimpleQueue()
        self._cancels: set[threading.Event] = set()  # of loads and changes that have not ended
        self._lock = threading.Lock()  # of these
        self._stopping = threading.Event()
        self._engine: LLMEngine | None = None
        self._intake = Intake(lambda event: self._emit(event), self.submit)
        self._last_snapshot = 0.0
        self._last_progress = 0.0
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
            self._close_engine()
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
            submitted = self._commands.get() if waits else self._commands.get_nowait()
            while True:
                self._handle(submitted)
                submitted = self._commands.get_nowait()
        except queue.Empty:
            pass

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
                self._load(command.config, cancel)
            case m.Unload():
                self._close_engine()
                self._emit(m.Unloaded())
            case m.AddRequest():
                self._intake.add(self._engine, command, at)
            case m.Abort():
                if not self._intake.abort(command.request_id) and self._engine is not None:
                    self._engine.abort(command.request_id)
            case Encoded():
                self._intake.encoded(self._engine, command)
            case m.Reconfigure():
                self._reconfigure(command, cancel)
            case m.InspectBlock(block):
                details = None if self._engine is None else self._engine.inspect_block(block)
                self._emit(m.BlockInspected(block, details))
            case m.MeasurePeaks():
                self._emit(self._measure_peaks())
            case m.CountTokens():
                self._intake.count(self._engine, command)
            case Counted():
                self._intake.counted(command)
            case m.EngineCrashed():
                self._emit(command)
            case m.Stop():
                self._stopping.set()

    def _load(self, config: EngineConfig, cancel: threading.Event) -> None:
        before = None if self._engine is None else self._engine.chosen_config
        if before is not None and not self._can_open(config, before):
            return
        self._close_engine(replaced_by(config))
        without_draft = None
        problem = self._try(config, cancel)
        if isinstance(problem, DraftModelError | OutOfMemoryError) and config.drafts_with_weights:
            without_draft = problem.info()
            problem = self._try(config.replace(speculative_method="off"), cancel)
        if problem is not None:
            self._load_failed(problem, before)
        else:
            self._announce(without_draft)

    def _try(self, config: EngineConfig, cancel: threading.Event) -> BaseException | None:
        """Load; the error, with the partly loaded model freed."""
        try:
            self._engine = self._factory(config, self._progress, cancel.is_set)
        except BaseException as error:
            if is_interrupt(error):
                raise
            if not isinstance(error, (InferdeckError, MemoryError, OSError)):
                log.exception("Loading %s failed", config.model)
            let_go(error)
            return error
        self._engine.report_steps(self.heartbeat.sized, self.heartbeat.progress)
        self.heartbeat.serve(_slowest_layer_s(self._engine))
        return None

    def _can_open(self, config: EngineConfig, serving: EngineConfig) -> bool:
        """Refuse an invalid configuration while the current model is still loaded."""
        from engine.host.resolve import resolve

        try:
            resolve(config)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._emit(m.LoadFailed(describe(error), serving=serving.model))
            return False
        return True

    def _load_failed(self, error: BaseException, before: EngineConfig | None) -> None:
        cancelled, info = isinstance(error, LoadCancelled), describe(error)
        if before is not None and not self._stopping.is_set():
            again = self._try(before, self._stopping)
            if again is not None:
                lost = f"Reloading the previous model {before.model} also failed:"
                remedy = f"{info.remedy} {lost} {describe(again).cause}".strip()
                info = info._replace(remedy=remedy)
        serving = None if self._engine is None else self._engine.config.model
        self._emit(m.LoadFailed(info, cancelled=cancelled, serving=serving))
        if self._engine is not None:
            self._announce()

    def _announce(self, without_draft: ErrorInfo | None = None) -> None:
        engine = self._engine
        assert engine is not None
        self._emit(m.Loaded(engine.config, engine.model_info, engine.plan, without_draft))

    def _reconfigure(self, command: m.Reconfigure, cancel: threading.Event) -> None:
        engine = self._engine
        if engine is None:
            return
        began, num_notices = time.perf_counter(), len(engine.model_info.notices)
        before = engine.preempted
        try:
            change = engine.reconfigure(self._progress, cancel.is_set, **command.changes)
        except EngineLostError:
            raise  # a crash: there is no engine any more
        except InferdeckError as error:
            self._emit(m.ReconfigureFailed(engine.config, error.info()))
            return
        notices = engine.model_info.notices[num_notices:]
        seconds = time.perf_counter() - began
        lost = engine.preempted.since(before)
        self._emit(
            m.Reconfigured(
                engine.config, change, seconds, notices, engine.model_info, engine.plan,
                lost.requests, lost.tokens,
            )
        )  # fmt: skip

    def _measure_peaks(self) -> m.PeaksMeasured:
        """Only while idle: steps and the measurement would disturb each other."""
        engine = self._engine
        if engine is None:
            return m.PeaksMeasured(None, "No model is loaded.")
        if engine.has_unfinished:
            return m.PeaksMeasured(None, "The engine is busy.")
        try:
            peaks = peaks_for(
                engine.config, engine.model_info, engine.plan.host_layers, self._stopping.is_set
            )
            return m.PeaksMeasured(engine.with_weight_rates(peaks, self._stopping.is_set))
        except (MemoryError, RuntimeError) as error:
            return m.PeaksMeasured(None, describe(error).cause)

    def _step(self) -> None:
        engine = self._engine
        if engine is None or not engine.has_unfinished:
            return
        known, shrunk = engine.model_info.notices, engine.times_shrunk
        with self.heartbeat.during("step", STEP_S):
            events = engine.step()
            self._stale = True
            self._is_first = any(event.is_first for event in events)
            for event in events:
                self._emit_output(event)
        if engine.model_info.notices is not known:  # it had to change something by itself
            text = engine.model_info.notices[-1]
            log.warning(text)
            is_smaller = engine.times_shrunk != shrunk
            times = engine.times_shrunk if is_smaller else engine.times_not_async
            self._emit(m.MadeRoom(text, engine.model_info, engine.plan, times, is_smaller))

    def _emit_output(self, event: m.OutputEvent) -> None:
        self._emit(event)
        if event.finish_reason is FinishReason.ERROR and event.error is not None:
            self._emit(m.RequestFailed(event.request_id, event.error))

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

    def _progress(self, stage: str, done: int, total: int) -> None:
        self.heartbeat.progress()
        now = time.perf_counter()
        if done >= total or now - self._last_progress >= PROGRESS_INTERVAL_S:
            self._last_progress = now
            self._emit(m.LoadProgress(stage, done, total))

    def _crash(self, error: BaseException) -> None:
        """Drop the engine. Requests in flight are lost; the thread waits for a Load."""
        engine, self._engine = self._engine, None
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
            self._shut_down(engine)

    def _close_engine(self, error: ErrorInfo | None = None) -> None:
        """Running requests end, aborted or with `error`."""
        self._intake.end(error)
        engine, self._engine = self._engine, None
        if engine is not None:
            self._shut_down(engine, error, says_last=True)

    def _shut_down(
        self, engine: LLMEngine, error: ErrorInfo | None = None, says_last: bool = False
    ) -> None:
        """Free an engine; the thread survives a failure."""
        try:
            engine.shutdown(error)
            for event in engine.step() if says_last else ():
                self._emit_output(event)
        except BaseException:
            log.exception("Engine shutdown failed")


def _slowest_layer_s(engine: LLMEngine) -> float:
    """The longest time of one token in one layer; 0 unless CPU layers compute."""
    info = engine.model_info
    on_cpu = info.device == CPU or engine.plan.host_layers
    return 2 * info.num_parameters / info.num_layers / SLOWEST_FLOPS if on_cpu else 0.0


_OTHER = ("command", COMMAND_S)
_NAMES: dict[type, tuple[str, float]] = {
    m.Load: ("loading a model", SLOW_S), m.Unload: ("unloading", SLOW_S),
    m.Reconfigure: ("changing settings", SLOW_S), m.MeasurePeaks: ("measuring", FIRST_STEP_S),
    m.AddRequest: ("adding a request", COMMAND_S), Encoded: ("adding a request", COMMAND_S),
    m.Abort: ("aborting a request", COMMAND_S), m.InspectBlock: ("inspecting a block", COMMAND_S),
    m.CountTokens: ("counting tokens", COMMAND_S), m.Stop: ("stopping", SLOW_S),
}  # fmt: skip
"""What a command is called, and how long it may take without progress."""
