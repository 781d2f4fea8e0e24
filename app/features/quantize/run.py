"""A job of the page: quantize, evaluate, or both, with progress and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.quantize.evaluation import EvaluationPlan
from app.features.quantize.plan import QuantizePlan, model_name
from app.features.quantize.work import Outcome, Progress, Stage, evaluating, quantizing
from app.link.tasks import Task, run_task
from engine.errors import LoadCancelled
from engine.evaluate import EvaluationCancelled, unit_of
from engine.evaluate.task import CANDIDATE
from engine.units import bytes_text, duration_text

if TYPE_CHECKING:
    from engine.evaluate.report import EvaluationReport
    from engine.quantize.recipe import LayerResult, QuantizeResult


def about(seconds: float) -> str:
    """ "a few seconds", "about 40 s", "about 3 min", "about 2 h 10 min"."""
    if seconds < 8:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds / 10) * 10 or 10} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"


class Pace:
    """Estimates the time left of an evaluation. `last`: the last stage of each side."""

    def __init__(self, last: str, has_reference: bool) -> None:
        self._last, self._has_reference = last, has_reference
        self._began: dict[str, float] = {}  # seconds at which a stage was first seen, in order
        self._expected: dict[str, float] = {}  # seconds that a kind of work took, or will take

    def left(self, stage: Stage, seconds: float) -> float | None:
        """Seconds that are left, `seconds` after the start; None if unknown."""
        side, _, kind = stage.text.partition(": ")
        if not kind:
            return None
        self._note(stage.text, seconds)
        spent = seconds - self._began[stage.text]
        rest = self._rest(kind, stage, spent)
        if rest is None:
            return None
        if side == CANDIDATE:
            is_known = self._has_reference or kind == self._last
            return rest + self._later() if is_known else None
        self._expected[kind] = spent + rest
        return rest + sum(self._expected.values()) if kind == self._last else None

    def _later(self) -> float:
        """Seconds of the candidate's stages that have not begun."""
        kinds = list(self._expected)
        begun = [i for i, kind in enumerate(kinds) if f"{CANDIDATE}: {kind}" in self._began]
        return sum(self._expected[kind] for kind in kinds[max(begun, default=-1) + 1 :])

    def _note(self, text: str, seconds: float) -> None:
        """A new stage ends the previous one."""
        if text in self._began:
            return
        if self._began:
            before = next(reversed(self._began))
            side, _, kind = before.partition(": ")
            if side != CANDIDATE:
                self._expected[kind] = seconds - self._began[before]
        self._began[text] = seconds

    def _rest(self, kind: str, stage: Stage, spent: float) -> float | None:
        """Seconds left in this stage: from its progress, else from the other side's time."""
        if stage.total and 0 < stage.done <= stage.total:
            return spent / stage.done * (stage.total - stage.done)
        expected = self._expected.get(kind)
        return None if expected is None else max(0.0, expected - spent)


SHOW_MS = 200


class RunFigures(NamedTuple):
    """Shown progress; `fraction` is None if unknown."""

    title: str
    stage: str
    time: str
    fraction: float | None


class Run(QObject):
    """One job in its own thread; the chat stays usable. `moved`: figures changed;
    `made(QuantizeResult)` when a model is written, `measured(report)` after an evaluation,
    `ended(Outcome)` once, of the last part."""

    moved = Signal()
    made = Signal(object)
    measured = Signal(object)
    ended = Signal(object)

    def __init__(
        self,
        quantize: QuantizePlan | None,
        evaluate: EvaluationPlan | None,
        num_threads: int | None = None,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        assert quantize is not None or evaluate is not None
        self.quantize, self.evaluate = quantize, evaluate
        self._num_threads = num_threads
        self.result: QuantizeResult | None = None
        self.report: EvaluationReport | None = None
        self.num_layers = 0
        self.is_cancelling = False
        self._progress = Progress()  # of this part
        self._began = time.monotonic()
        self._layers_began: float | None = None
        self._pace: Pace | None = None
        self._task: Task | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(SHOW_MS)
        self._timer.timeout.connect(self.moved)

    def start(self) -> None:
        if self.quantize is not None:
            self._begin(quantizing(self.quantize, self._num_threads), self._on_made)
        else:
            self._measure()

    def _measure(self) -> None:
        assert self.evaluate is not None
        self._pace = Pace(self.evaluate.last_work, self.evaluate.configs()[1] is not None)
        self._begin(evaluating(self.evaluate), self._on_measured)

    def _begin(self, work: Callable[[Progress], Any], done: Callable[[Outcome], None]) -> None:
        progress = self._progress = Progress()
        self._began = time.monotonic()

        def outcome() -> Outcome:
            try:
                return Outcome(work(progress))
            except (LoadCancelled, EvaluationCancelled):
                return Outcome()

        self._task = run_task(self, outcome, done, lambda error: done(Outcome(error=error)))
        self._timer.start()
        self.moved.emit()

    # Its state ---------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since this part began."""
        return time.monotonic() - self._began

    @property
    def is_measuring(self) -> bool:
        return self.quantize is None or (self.result is not None and self.evaluate is not None)

    @property
    def has_layers(self) -> bool:
        return self.quantize is not None and not self.is_measuring

    @property
    def layers(self) -> Sequence[LayerResult]:
        return tuple(self._progress.layers)

    def cancel(self) -> None:
        """Cancel; `ended` follows."""
        self.is_cancelling = True
        self._progress.cancel()
        self.moved.emit()

    def stop(self, timeout_s: float) -> None:
        """Cancel and wait for the thread, without `ended`."""
        self._timer.stop()
        self._progress.cancel()
        if self._task is not None:
            self._task.join(timeout_s)

    def _on_made(self, outcome: Outcome) -> None:
        if outcome.result is None:
            self._end(outcome)
            return
        self.result = outcome.result
        self.made.emit(outcome.result)
        if self.evaluate is None:
            self._end(outcome)
        elif self.is_cancelling:  # the model is written, the evaluation is not
            self._end(Outcome())
        else:
            self._measure()

    def _on_measured(self, outcome: Outcome) -> None:
        if outcome.result is not None:
            self.report = outcome.result
            self.measured.emit(outcome.result)
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._timer.stop()
        self.ended.emit(outcome)

    # Labels ------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        if not self.is_measuring:
            assert self.quantize is not None
            return f"Quantizing {self.quantize.title}"
        assert self.evaluate is not None
        return f"Evaluating {model_name(self.evaluate.candidate.path)}"

    def figures(self) -> RunFigures:
        if self.is_cancelling:
            return RunFigures(self.title, "Stopping", _spent(self.seconds), None)
        return self._measuring() if self.is_measuring else self._quantizing()

    def _quantizing(self) -> RunFigures:
        stage, seconds = self._progress.stage, self.seconds
        done = len(self.layers)
        if not stage.total:
            return RunFigures(self.title, stage.text or "Starting", _spent(seconds), None)
        self.num_layers = stage.total
        if self._layers_began is None:
            self._layers_began = seconds
        spent = seconds - self._layers_began
        rest = spent / done * (stage.total - done) if done else None
        place = f"Layer {min(done + 1, stage.total)} of {stage.total}"
        words = (
            stage.text
            if done == stage.total
            else f"{place}: {stage.text[:1].lower()}" + (stage.text[1:])
        )
        return RunFigures(self.title, words, _time(seconds, rest), done / stage.total)

    def _measuring(self) -> RunFigures:
        stage, seconds = self._progress.stage, self.seconds
        words = stage.text or "Starting"
        if stage.total and (unit := unit_of(stage.text)) == "bytes":
            words = f"{words}: {bytes_text(stage.done)} of {bytes_text(stage.total)}"
        elif stage.total:
            words = f"{words}: {stage.done:,} of {stage.total:,} {unit}"
        fraction = stage.done / stage.total if stage.total else None
        rest = self._pace.left(stage, seconds) if self._pace is not None else None
        return RunFigures(self.title, words, _time(seconds, rest), fraction)


def _spent(seconds: float) -> str:
    """In whole seconds: it counts up."""
    return duration_text(int(seconds))


def _time(seconds: float, rest: float | None) -> str:
    """ "12 s · about 40 s left"."""
    return _spent(seconds) if rest is None else f"{_spent(seconds)} · {about(rest)} left"
