"""The work of quantizing and evaluating, with progress and cancel. No Qt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from app.features.quantize.evaluation import EvaluationPlan
from app.features.quantize.plan import QuantizePlan
from app.features.quantize.texts import calibration_texts
from engine.errors import ErrorInfo

if TYPE_CHECKING:
    from engine.evaluate.report import EvaluationReport
    from engine.quantize.recipe import LayerResult, QuantizeResult


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


def quantizing(
    plan: QuantizePlan, num_threads: int | None = None
) -> Callable[[Progress], QuantizeResult]:
    """The work of a quantization plan. `num_threads`: None for all."""

    def work(progress: Progress) -> QuantizeResult:
        import torch

        from engine.hardware.idle_cores import keeping_busy
        from engine.hardware.machine import default_threads
        from engine.quantize.quantize import quantize

        file = plan.text.path if plan.text.file else None
        is_calibrated = plan.recipe.facts.is_calibrated
        texts = calibration_texts(plan.source, file) if is_calibrated else ()
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
