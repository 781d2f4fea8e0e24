"""The thread that owns the engine: serves commands and runs steps. See `EngineThread`.

Each command and each step is a beat of `heartbeat`.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from engine import messages as m
from engine.config import EngineConfig
from engine.errors import (
    DraftModelError,
    EngineLostError,
    ErrorInfo,
    InferdeckError,
    InvalidRequestError,
    LoadCancelled,
    OutOfMemoryError,
    describe,
    is_interrupt,
    is_panic,
    let_go,
    panic_text,
)
from engine.hardware.peaks import peaks_for
from engine.heartbeat import (
    COMMAND_S,
    FIRST_STEP_S,
    SLOW_S,
    STEP_S,
    Heartbeat,
)
from engine.sampling_params import SamplingParams
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


class _Encoded(NamedTuple):
    """The prompt of a request is encoded, or could not be."""

    command: m.AddRequest
    params: SamplingParams
    token_ids: Future[list[int]]


class _Counted(NamedTuple):
    """The tokens of a text."""

    key: str
    token_ids: Future[list[int]]


class Submitted(NamedTuple):
    """A command in the queue of a worker."""

    command: m.Command | m.EngineCrashed | _Encoded | _Counted
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
        self._encoding: dict[str, Future[list[int]]] = {}  # prompts of requests to come
        self._last_snapshot = 0.0
        self._last_progress = 0.0
        self._stale = False  # something changed since the last snapshot
        self._is_first = False  # a request's first token came with the last step

    # -- called from any thread -------------------------------------------------------------

    def submit(self, command: m.Command | m.EngineCrashed | _Encoded | _Counted) -> None:
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
                if not isinstance(submitted.command, (_Encoded, _Counted)):
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
        command: m.Command | m.EngineCrashed | _Encoded | _Counted,
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
                self._add(command, at)
            case m.Abort():
                if command.request_id in self._encoding:
                    self._abort_encoding(command.request_id)
                elif self._engine is not None:
                    self._engine.abort(command.request_id)
            case _Encoded(request, params, future):
                if self._encoding.get(request.request_id) is future:
                    del self._encoding[request.request_id]
                    self._add_encoded(request, params, future)
            case m.Reconfigure():
                self._reconfigure(command, cancel)
            case m.InspectBlock(block):
                details = None if self._engine is None else self._engine.inspect_block(block)
                self._emit(m.BlockInspected(block, details))
            case m.MeasurePeaks():
                self._emit(self._measure_peaks())
            case m.CountTokens():
                self._count(command)
            case _Counted(key, future):
                self._emit(m.TokensCounted(key, _num_tokens(future)))
            case m.EngineCrashed():
                self._emit(command)
            case m.Stop():
                self._stopping.set()

    def _load(self, config: EngineConfig, cancel: threading.Event) -> None:
        before = None if self._engine is None else self._engine.config
        if before is not None and not self._can_open(config, before):
            return
        self._close_engine(_replaced_by(config))
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
        self.heartbeat.serve()
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

    def _add(self, command: m.AddRequest, at: float) -> None:
        if self._engine is None:
            error = InvalidRequestError("No model is loaded.", "Load a model first.")
            self._emit(m.RequestFailed(command.request_id, error.info()))
            return
        if command.model is not None and command.model != self._engine.model_info.path:
            self._emit(m.RequestFailed(command.request_id, _replaced_by(self._engine.config)))
            return
        if command.arrival is None:
            command = replace(command, arrival=at)
        try:
            if command.request_id in self._encoding:
                raise InvalidRequestError(
                    f"Request id {command.request_id!r} is already in use.",
                    "Use a unique id per request.",
                )
            future, params = self._engine.encode(command.prompt, command.params, command.client)
        except BaseException as error:
            self._refuse(command.request_id, error)
            return
        if future.done():
            self._add_encoded(command, params, future)
            return
        # Steps go on while another process encodes.
        self._encoding[command.request_id] = future
        encoded = _Encoded(command, params, future)
        future.add_done_callback(lambda _: self.submit(encoded))

    def _add_encoded(
        self, command: m.AddRequest, params: SamplingParams, future: Future[list[int]]
    ) -> None:
        assert self._engine is not None
        try:
            self._engine.add_request(
                future.result(), params, command.request_id, command.begin_with,
                arrival=command.arrival,
            )  # fmt: skip
        except BaseException as error:
            self._refuse(command.request_id, error)

    def _refuse(self, request_id: str, error: BaseException) -> None:
        """Report what a request's text or parameters are to blame for; raise anything else."""
        info = _refusal(error)
        if info is None:
            raise error
        self._emit(m.RequestFailed(request_id, info))

    def _abort_encoding(self, request_id: str) -> None:
        self._encoding.pop(request_id).cancel()
        ended = m.OutputEvent(
            request_id, "", (), time.perf_counter(), step_index=0, num_prompt_tokens=0,
            num_cached_tokens=0, finish_reason=FinishReason.ABORT,
        )  # fmt: skip
        self._emit(ended)

    def _count(self, command: m.CountTokens) -> None:
        """None without a model, or where the text is too much for the tokenizer."""
        key = command.key
        if self._engine is None:
            self._emit(m.TokensCounted(key, None))
            return
        try:
            future = self._engine.count_tokens(command.text, command.client)
        except BaseException as error:
            info = _refusal(error)
            if info is None:
                raise
            log.warning("Counting tokens failed: %s", info.cause)
            self._emit(m.TokensCounted(key, None))
            return
        future.add_done_callback(lambda _: self.submit(_Counted(key, future)))

    def _reconfigure(self, command: m.Reconfigure, cancel: threading.Event) -> None:
        engine = self._engine
        if engine is None:
            return
        began, num_notices = time.perf_counter(), len(engine.model_info.notices)
        try:
            change = engine.reconfigure(self._progress, cancel.is_set, **command.changes)
        except EngineLostError:
            raise  # a crash: there is no engine any more
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
        while self._encoding:
            self._encoding.popitem()[1].cancel()
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
        for request_id in list(self._encoding):
            if error is None:
                self._abort_encoding(request_id)
            else:
                self._encoding.pop(request_id).cancel()
                self._emit(m.RequestFailed(request_id, error))
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


_OTHER = ("command", COMMAND_S)
_NAMES: dict[type, tuple[str, float]] = {
    m.Load: ("loading a model", SLOW_S), m.Unload: ("unloading", SLOW_S),
    m.Reconfigure: ("changing settings", SLOW_S), m.MeasurePeaks: ("measuring", FIRST_STEP_S),
    m.AddRequest: ("adding a request", COMMAND_S), _Encoded: ("adding a request", COMMAND_S),
    m.Abort: ("aborting a request", COMMAND_S), m.InspectBlock: ("inspecting a block", COMMAND_S),
    m.CountTokens: ("counting tokens", COMMAND_S), m.Stop: ("stopping", SLOW_S),
}  # fmt: skip
"""What a command is called, and how long it may take without progress."""


def _replaced_by(config: EngineConfig) -> ErrorInfo:
    """Why requests end at a change of model. Clients read it: no path, only the folder's name."""
    name = os.path.basename(os.path.abspath(config.model))
    return ErrorInfo(f"The model was unloaded to load {name}.", "Send the request again.")


def _num_tokens(token_ids: Future[list[int]]) -> int | None:
    try:
        return len(token_ids.result())
    except (InferdeckError, CancelledError) as error:
        log.warning("Counting tokens failed: %s", error)
        return None


def _refusal(error: BaseException) -> ErrorInfo | None:
    """Why a text cannot be encoded; None if the fault is not the text's."""
    if is_panic(error):
        return ErrorInfo(
            f"The tokenizer cannot encode this text: {panic_text(error)}.",
            "Shorten the text, and remove long runs of whitespace or of one character.",
            type(error).__name__,
        )
    if isinstance(error, MemoryError):
        return ErrorInfo(
            "Out of memory while encoding the text.", "Shorten the text, or close other programs.",
            "MemoryError",
        )  # fmt: skip
    return error.info() if isinstance(error, InferdeckError) else None
