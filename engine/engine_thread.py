"""The thread that owns the engine: commands in through a queue, events out through a callback.

    caller  -- submit(Command) -->  queue  -->  EngineThread: commands, one step, events, snapshot
    caller  <-- on_event(Event) --------------------------------------------------'

Neither side blocks: `submit` returns at once, and `on_event` runs on the engine's thread and must
return quickly (the window's bridge appends to a deque).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine import messages as m
from engine.config import EngineConfig
from engine.errors import (
    DraftModelError,
    ErrorInfo,
    InferdeckError,
    InvalidRequestError,
    LoadCancelled,
    OutOfMemoryError,
    describe,
    let_go,
)
from engine.hardware.peaks import peaks_for
from engine.snapshot import FinishReason

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)

EngineFactory = Callable[
    [EngineConfig, Callable[[str, int, int], None], Callable[[], bool]], "LLMEngine"
]
PROGRESS_INTERVAL_S = 0.05


def _make_engine(
    config: EngineConfig,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> LLMEngine:
    # Imported here, on the engine's thread: torch and transformers take seconds.
    from engine.llm_engine import LLMEngine

    return LLMEngine(config, progress, cancelled)


class EngineThread(threading.Thread):
    """Serves commands and runs steps until `stop`. `factory` is replaced in tests."""

    def __init__(
        self,
        on_event: Callable[[m.Event], None],
        *,
        snapshot_interval_s: float = 0.05,
        name: str = "engine",
        factory: EngineFactory = _make_engine,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._emit = on_event
        self._interval = snapshot_interval_s
        self._factory = factory
        # with the time of each: a request arrives when it is sent, not after the step of then
        self._commands: queue.SimpleQueue[tuple[m.Command, float]] = queue.SimpleQueue()
        self._cancel = threading.Event()
        self._stopping = threading.Event()
        self._engine: LLMEngine | None = None
        self._last_snapshot = 0.0
        self._last_progress = 0.0
        self._stale = False  # something changed since the last snapshot
        self._is_first = False  # a request's first token came with the last step

    # -- called from any thread -------------------------------------------------------------

    def submit(self, command: m.Command) -> None:
        if isinstance(command, (m.Load, m.Reconfigure)):
            self._cancel.clear()
        self._commands.put((command, time.perf_counter()))

    def cancel_load(self) -> None:
        """Cancel the running load or reload, if any."""
        self._cancel.set()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Abort everything and end the thread. True if it ended within the time."""
        self._stopping.set()
        self._cancel.set()
        self._commands.put((m.Stop(), time.perf_counter()))
        if self.is_alive():
            self.join(timeout_s)
        return not self.is_alive()

    # -- the thread -------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._serve_commands()
                if self._stopping.is_set():
                    break
                self._step()
                self._publish()
        finally:
            self._close_engine()

    def _serve_commands(self) -> None:
        """Handle queued commands; when idle, wait for the next one."""
        busy = self._engine is not None and self._engine.has_unfinished
        try:
            waits = not (busy or self._stale)
            command, at = self._commands.get() if waits else self._commands.get_nowait()
            while True:
                self._handle(command, at)
                command, at = self._commands.get_nowait()
        except queue.Empty:
            pass

    def _handle(self, command: m.Command, at: float) -> None:
        self._stale = True
        try:
            match command:
                case m.Load():
                    self._load(command.config)
                case m.Unload():
                    self._close_engine()
                    self._emit(m.Unloaded())
                case m.AddRequest():
                    self._add(command, at)
                case m.Abort():
                    if self._engine is not None:
                        self._engine.abort(command.request_id)
                case m.Reconfigure():
                    self._reconfigure(command)
                case m.InspectBlock(block):
                    details = None if self._engine is None else self._engine.inspect_block(block)
                    self._emit(m.BlockInspected(block, details))
                case m.MeasurePeaks():
                    self._emit(self._measure_peaks())
                case m.CountTokens(key, text):
                    count = None if self._engine is None else self._engine.count_tokens(text)
                    self._emit(m.TokensCounted(key, count))
                case m.Stop():
                    self._stopping.set()
        except Exception as error:  # a fault of the engine: say so, and serve on
            self._crash(error)

    def _load(self, config: EngineConfig) -> None:
        before = None if self._engine is None else self._engine.config
        if before is not None and not self._can_open(config, before):
            return
        self._close_engine()
        without_draft = None
        problem = self._try(config)
        if isinstance(problem, DraftModelError | OutOfMemoryError) and config.drafts_with_weights:
            without_draft = problem.info()
            problem = self._try(config.replace(speculative_method="off"))
        if problem is not None:
            self._load_failed(problem, before)
        else:
            self._announce(without_draft)

    def _try(self, config: EngineConfig) -> BaseException | None:
        """Load; the error, with the partly loaded model freed."""
        try:
            self._engine = self._factory(config, self._progress, self._cancel.is_set)
        except (InferdeckError, MemoryError, OSError) as error:
            let_go(error)
            return error
        return None

    def _can_open(self, config: EngineConfig, serving: EngineConfig) -> bool:
        """Refuse an invalid configuration while the current model is still loaded."""
        from engine.host.resolve import resolve

        try:
            resolve(config)
        except (InferdeckError, OSError) as error:
            self._emit(m.LoadFailed(describe(error), serving=serving.model))
            return False
        return True

    def _load_failed(self, error: BaseException, before: EngineConfig | None) -> None:
        cancelled, info = isinstance(error, LoadCancelled), describe(error)
        if before is not None and not self._stopping.is_set():
            try:
                self._engine = self._factory(before, self._progress, self._stopping.is_set)
            except (InferdeckError, MemoryError, OSError) as again:
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

    def _add(self, command: m.AddRequest, at: float) -> None:
        if self._engine is None:
            error = InvalidRequestError("No model is loaded.", "Load a model first.")
            self._emit(m.RequestFailed(command.request_id, error.info()))
            return
        try:
            self._engine.add_request(
                command.prompt, command.params, command.request_id, command.begin_with,
                arrival=at if command.arrival is None else command.arrival,
            )  # fmt: skip
        except InferdeckError as error:
            self._emit(m.RequestFailed(command.request_id, error.info()))

    def _reconfigure(self, command: m.Reconfigure) -> None:
        engine = self._engine
        if engine is None:
            return
        began, num_notices = time.perf_counter(), len(engine.model_info.notices)
        try:
            change = engine.reconfigure(self._progress, self._cancel.is_set, **command.changes)
        except InferdeckError as error:
            self._emit(m.ReconfigureFailed(engine.config, error.info()))
            return
        notices = engine.model_info.notices[num_notices:]
        seconds = time.perf_counter() - began
        self._emit(
            m.Reconfigured(engine.config, change, seconds, notices, engine.model_info, engine.plan)
        )

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
            return m.PeaksMeasured(peaks)
        except (MemoryError, RuntimeError) as error:
            return m.PeaksMeasured(None, describe(error).cause)

    def _step(self) -> None:
        engine = self._engine
        if engine is None or not engine.has_unfinished:
            return
        known, shrunk = engine.model_info.notices, engine.times_shrunk
        try:
            events = engine.step()
        except Exception as error:
            self._crash(error)
            return
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
        now = time.perf_counter()
        if done >= total or now - self._last_progress >= PROGRESS_INTERVAL_S:
            self._last_progress = now
            self._emit(m.LoadProgress(stage, done, total))

    def _crash(self, error: Exception) -> None:
        """Drop the engine. Requests in flight are lost; the thread waits for a Load."""
        engine, self._engine = self._engine, None
        self._emit(m.EngineCrashed(describe(error), "".join(traceback.format_exception(error))))
        if engine is not None:
            self._shut_down(engine)

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            self._shut_down(engine, says_last=True)

    def _shut_down(self, engine: LLMEngine, says_last: bool = False) -> None:
        """Free an engine; the thread survives a failure."""
        try:
            engine.shutdown()
            for event in engine.step() if says_last else ():
                self._emit_output(event)
        except Exception:
            log.exception("Engine shutdown failed")
