"""`ServedEngine`: the engine of a worker: loads it, changes its settings, frees it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

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
from engine.heartbeat import SLOWEST_FLOPS, Heartbeat
from engine.intake import replaced_by
from engine.profile_run import ProfileRun
from engine.snapshot import FinishReason

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)

EngineFactory = Callable[
    [EngineConfig, Callable[[str, int, int], None], Callable[[], bool]], "LLMEngine"
]
PROGRESS_INTERVAL_S = 0.05


def make_engine(
    config: EngineConfig,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> LLMEngine:
    # Imported here, on the engine's thread: torch and transformers take seconds.
    from engine.llm_engine import LLMEngine

    return LLMEngine(config, progress, cancelled)


class ServedEngine:
    """`engine`: None without a model. A load that fails leads back to the engine before it. Events
    go to `emit`; `end_requests` is called before an engine is freed. For the worker's thread."""

    def __init__(
        self,
        emit: Callable[[m.Event], None],
        end_requests: Callable[[ErrorInfo | None], None],
        heartbeat: Heartbeat,
        stopping: threading.Event,
        factory: EngineFactory,
    ) -> None:
        self.engine: LLMEngine | None = None
        self._emit, self._end_requests = emit, end_requests
        self._heartbeat, self._stopping, self._factory = heartbeat, stopping, factory
        self._last_progress = 0.0
        self.profile = ProfileRun(emit)

    def let_go(self) -> LLMEngine | None:
        """The engine, which is served no more."""
        self.profile.end()
        engine, self.engine = self.engine, None
        return engine

    def load(self, config: EngineConfig, cancel: threading.Event) -> None:
        before = None if self.engine is None else self.engine.chosen_config
        if before is not None and not self._can_open(config, before):
            return
        self.close(replaced_by(config))
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
            self.engine = self._factory(config, self._progress, cancel.is_set)
        except BaseException as error:
            if is_interrupt(error):
                raise
            if not isinstance(error, (InferdeckError, MemoryError, OSError)):
                log.exception("Loading %s failed", config.model)
            let_go(error)
            return error
        self.engine.report_steps(self._heartbeat.sized, self._heartbeat.progress)
        self._heartbeat.serve(_slowest_layer_s(self.engine))
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
        serving = None if self.engine is None else self.engine.config.model
        self._emit(m.LoadFailed(info, cancelled=cancelled, serving=serving))
        if self.engine is not None:
            self._announce()

    def _announce(self, without_draft: ErrorInfo | None = None) -> None:
        engine = self.engine
        assert engine is not None
        self._emit(m.Loaded(engine.config, engine.model_info, engine.plan, without_draft))

    def reconfigure(self, command: m.Reconfigure, cancel: threading.Event) -> None:
        engine = self.engine
        if engine is None:
            return
        self.profile.end()
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

    def measure_peaks(self) -> m.PeaksMeasured:
        """Only while idle: steps and the measurement would disturb each other."""
        engine = self.engine
        if engine is None:
            return m.PeaksMeasured(None, "No model is loaded.")
        if engine.has_unfinished:
            return m.PeaksMeasured(None, "The engine is busy.")
        try:
            return m.PeaksMeasured(engine.measure_peaks(self._stopping.is_set))
        except (MemoryError, RuntimeError) as error:
            return m.PeaksMeasured(None, describe(error).cause)

    def close(self, error: ErrorInfo | None = None) -> None:
        """Running requests end, aborted or with `error`."""
        self._end_requests(error)
        engine = self.let_go()
        if engine is not None:
            self.shut_down(engine, error, says_last=True)

    def shut_down(
        self, engine: LLMEngine, error: ErrorInfo | None = None, says_last: bool = False
    ) -> None:
        """Free an engine; the thread survives a failure."""
        try:
            engine.shutdown(error)
            for event in engine.step() if says_last else ():
                say(self._emit, event)
        except BaseException:
            log.exception("Engine shutdown failed")

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._heartbeat.progress()
        now = time.perf_counter()
        if done >= total or now - self._last_progress >= PROGRESS_INTERVAL_S:
            self._last_progress = now
            self._emit(m.LoadProgress(stage, done, total))


def say(emit: Callable[[m.Event], None], event: m.OutputEvent) -> None:
    emit(event)
    if event.finish_reason is FinishReason.ERROR and event.error is not None:
        emit(m.RequestFailed(event.request_id, event.error))


def _slowest_layer_s(engine: LLMEngine) -> float:
    """The longest time of one token in one layer; 0 unless CPU layers compute."""
    info = engine.model_info
    on_cpu = info.device == CPU or engine.plan.host_layers
    return 2 * info.num_parameters / info.num_layers / SLOWEST_FLOPS if on_cpu else 0.0
