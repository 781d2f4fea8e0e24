"""`ProfileRun`: a profile of the next steps of a served engine, for the engine's thread."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine import messages as m
from engine.errors import InferdeckError

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine
    from engine.telemetry.profiler import StepProfiler

MOST_STEPS = 256
"""Of a profile: its trace is kept in memory."""


class ProfileRun:
    """At most one profile at a time. Its answer goes to `emit`, from a thread of its own: writing
    the trace takes as long as many steps."""

    def __init__(self, emit: Callable[[m.Event], None]) -> None:
        self._emit = emit
        self._profiler: StepProfiler | None = None
        self._num_steps = 0

    def begin(self, engine: LLMEngine | None, num_steps: int) -> None:
        if engine is None:
            self._emit(m.StepsProfiled(why_not="No model is loaded."))
        elif not engine.has_unfinished:
            self._emit(m.StepsProfiled(why_not="The engine is idle."))
        elif self._profiler is not None:
            self._emit(m.StepsProfiled(why_not="Another profile is running."))
        else:
            profiler = engine.profiler()
            try:
                profiler.__enter__()
            except InferdeckError as error:
                self._emit(m.StepsProfiled(why_not=error.info().cause))
                return
            self._profiler, self._num_steps = profiler, min(num_steps, MOST_STEPS)

    def step(self, engine: LLMEngine) -> list[m.OutputEvent]:
        profiler = self._profiler
        if profiler is None:
            return engine.step()
        events: list[m.OutputEvent] = profiler.step(engine.step)
        if profiler.num_steps >= self._num_steps or not engine.has_unfinished:
            self.end()
        return events

    def end(self) -> None:
        """Before the engine changes, and where it has nothing more to do."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.__exit__()
            threading.Thread(
                target=self._answer, args=(profiler,), name="profile-trace", daemon=True
            ).start()

    def _answer(self, profiler: StepProfiler) -> None:
        if not profiler.num_steps:
            why = "The requests ended, or settings changed, before a step was profiled."
            self._emit(m.StepsProfiled(why_not=why))
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "trace.json.gz"
                profiler.export_trace(file)
                trace = file.read_bytes()
        except OSError:  # a full disk
            trace = b""
        self._emit(m.StepsProfiled(profiler.profiles(), trace=trace))
