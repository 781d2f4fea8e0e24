"""Quantizing and evaluating in a thread, with progress and cancel.

    worker thread                         GUI thread
    quantize(...)  --> Report (plain) <-- a timer reads it --> `moved`
                   ------------------------ queued ----------> `ended(outcome)`

The worker never waits for the window. It is not the engine's thread: the chat continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import shiboken6
from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.features.quantize.evaluation import EvaluationPlan
from app.features.quantize.plan import QuantizePlan
from app.features.quantize.texts import texts_of
from engine.errors import ErrorInfo, LoadCancelled, describe
from engine.evaluate import EvaluationCancelled

if TYPE_CHECKING:
    from engine.evaluate.report import EvaluationReport
    from engine.quantize.recipe import LayerResult, QuantizeResult

SHOW_MS = 200


class Stage(NamedTuple):
    """Stage of a job: `done` of `total` (0: unknown)."""

    text: str = ""
    done: int = 0
    total: int = 0


class Outcome(NamedTuple):
    """How it ended: with a result, with an error, or cancelled (neither)."""

    result: Any = None
    error: ErrorInfo | None = None

    @property
    def was_cancelled(self) -> bool:
        return self.result is None and self.error is None


class Progress:
    """Progress of a job. Its methods are called in the worker's thread."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.layers: list[LayerResult] = []
        self._stop = threading.Event()

    def at(self, text: str, done: int, total: int) -> None:
        self.stage = Stage(text, done, total)

    def add_layer(self, layer: LayerResult) -> None:
        self.layers.append(layer)

    def is_cancelled(self) -> bool:
        return self._stop.is_set()

    def cancel(self) -> None:
        self._stop.set()


class Job(QObject):
    """A worker thread. `moved`: `progress` changed; `ended(Outcome)` once, in the GUI thread."""

    moved = Signal()
    ended = Signal(object)
    _over = Signal(object)

    def __init__(self, work: Callable[[Progress], Any], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._work = work
        self.progress = Progress()
        self.is_cancelling = False
        self.outcome: Outcome | None = None
        self._began = time.monotonic()
        self._lasted = 0.0
        self._timer = QTimer(self)
        self._timer.setInterval(SHOW_MS)
        self._timer.timeout.connect(self.moved)
        self._over.connect(self._end, Qt.ConnectionType.QueuedConnection)
        self._thread = threading.Thread(target=self._run, name="quantize", daemon=True)

    def start(self) -> Job:
        self._began = time.monotonic()
        self._timer.start()
        self._thread.start()
        return self

    @property
    def is_running(self) -> bool:
        return self.outcome is None

    @property
    def seconds(self) -> float:
        """Elapsed time; the duration once it ended."""
        return time.monotonic() - self._began if self.is_running else self._lasted

    def cancel(self) -> None:
        """Cancel; `ended` follows."""
        if self.is_running:
            self.is_cancelling = True
            self.progress.cancel()
            self.moved.emit()

    def join(self, timeout_s: float) -> bool:
        """Cancel and wait for the thread; False if it still runs. Emits no `ended`."""
        self._timer.stop()
        self._over.disconnect(self._end)
        self.progress.cancel()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self.outcome is None:
            self.outcome = Outcome()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            outcome = Outcome(result=self._work(self.progress))
        except (LoadCancelled, EvaluationCancelled):
            outcome = Outcome()
        except Exception as problem:  # any failure of the work is the user's to read
            outcome = Outcome(error=describe(problem))
        if shiboken6.isValid(self):
            self._over.emit(outcome)

    @Slot(object)
    def _end(self, outcome: Outcome) -> None:
        self._thread.join()  # it has nothing left to do
        self._timer.stop()
        self._lasted = time.monotonic() - self._began
        self.outcome = outcome
        self.ended.emit(outcome)


def quantizing(
    plan: QuantizePlan, num_threads: int | None = None
) -> Callable[[Progress], QuantizeResult]:
    """The work of a quantization plan. `num_threads`: None for all."""

    def work(progress: Progress) -> QuantizeResult:
        import torch

        from engine.hardware.idle_cores import keeping_busy
        from engine.hardware.machine import default_threads
        from engine.quantize.quantize import quantize

        texts = texts_of(plan.text, plan.source) if plan.recipe.facts.is_calibrated else ()
        # OpenMP's number of threads belongs to the thread that sets it (the engine keeps its own),
        # but later threads inherit it: restore it
        before, threads = torch.get_num_threads(), num_threads or default_threads()
        torch.set_num_threads(threads)
        try:
            with keeping_busy(threads):
                return quantize(
                    plan.source, plan.recipe, plan.output, texts, progress.at,
                    progress.is_cancelled, progress.add_layer,
                )  # fmt: skip
        finally:
            torch.set_num_threads(before)

    return work


def evaluating(plan: EvaluationPlan) -> Callable[[Progress], EvaluationReport]:
    """The work of an evaluation plan, as on the command line."""

    def work(progress: Progress) -> EvaluationReport:
        from engine.evaluate import run
        from engine.hardware.devices import is_cuda, resolve_device
        from engine.hardware.idle_cores import keeping_busy
        from engine.hardware.machine import default_threads

        threads = plan.num_threads or default_threads()
        if is_cuda(resolve_device(plan.candidate.config().device)):
            threads = 1  # it launches what the GPU computes
        with keeping_busy(threads):
            return run(plan.task(), progress.at, progress.is_cancelled)

    return work
