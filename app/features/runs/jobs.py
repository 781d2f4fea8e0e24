"""`Jobs`: runs one quantization or evaluation at a time, and keeps its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from app.features.quantize.evaluation import (
    EvaluationPlan,
    ModelChoice,
    evaluate_command,
    quantize_command,
)
from app.features.quantize.plan import QuantizePlan, model_name, recipe_label
from app.features.quantize.run import Run
from app.features.quantize.texts import TextChoice
from app.features.quantize.work import Outcome
from app.features.runs.book import RunBook
from app.features.runs.records import of_quantization
from app.storage.run_records import Kind, RunRecord, State
from engine.units import duration_text, precision_name

if TYPE_CHECKING:
    from engine.evaluate.report import EvaluationReport
    from engine.quantize.recipe import QuantizeResult

LIVE = "job"


class Jobs(QObject):
    """`begun`, `moved`: of the run; `made(QuantizePlan, QuantizeResult)`: a model was written;
    `kept(id)`: a result is in the book; `ended(Run, Outcome)`."""

    begun = Signal()
    moved = Signal()
    made = Signal(object, object)
    kept = Signal(str)
    ended = Signal(object, object)

    def __init__(
        self, book: RunBook, threads: Callable[[], int | None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._book, self._threads = book, threads
        self.run: Run | None = None
        self.ending: tuple[str, bool] | None = None  # outcome of the last job; whether an error
        self._started = ""

    def quantize(self, plan: QuantizePlan, text: TextChoice | None) -> None:
        """`text`: to evaluate the new model against its source; None: not at all."""
        evaluation = None if text is None else evaluation_of(plan.output, plan.source, text)
        self._start(Run(plan, evaluation, self._threads(), self))

    def evaluate(self, plan: EvaluationPlan) -> None:
        self._start(Run(None, plan, parent=self))

    def cancel(self) -> None:
        """Cancel the job; an unfinished result is discarded."""
        if self.run is not None:
            self.run.cancel()

    def stop(self, timeout_s: float) -> None:
        """Stop the job as the program ends."""
        if self.run is not None:
            self.run.stop(timeout_s)
            self.run = None

    def _start(self, run: Run) -> None:
        if self.run is not None:
            return
        self.run, self.ending = run, None
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        run.moved.connect(self._on_moved)
        run.made.connect(self._on_made)
        run.measured.connect(self._on_measured)
        run.ended.connect(self._on_ended)
        run.start()
        self.begun.emit()

    def _record(self, run: Run) -> RunRecord:
        if not run.is_measuring and run.quantize is not None:
            plan = run.quantize
            name, precision = model_name(plan.source), recipe_label(plan.recipe)
            return RunRecord(LIVE, Kind.QUANTIZE, name, precision, self._started)
        assert run.evaluate is not None
        choice = run.evaluate.candidate
        precision = precision_name(str(choice.settings.get("quantization", "")))
        return RunRecord(
            LIVE, Kind.EVALUATE, model_name(choice.path), precision, self._started
        )

    def _on_moved(self) -> None:
        if self.run is not None:
            shown = self.run.figures()
            percent = "" if shown.fraction is None else f"{100 * shown.fraction:.0f} % · "
            self._book.show_live(self._record(self.run), f"{percent}{shown.stage}")
            self.moved.emit()

    def _on_made(self, result: QuantizeResult) -> None:
        run = self.run
        assert run is not None and run.quantize is not None
        kept = self._book.keep(of_quantization(result, self._started, run.quantize.source))
        self.made.emit(run.quantize, result)
        self.kept.emit(kept)

    def _on_measured(self, report: EvaluationReport) -> None:
        run = self.run
        assert run is not None and run.evaluate is not None
        commands = [evaluate_command(run.evaluate)]
        if run.quantize is not None:
            commands.insert(0, quantize_command(run.quantize))
        self.kept.emit(self._book.keep_report(report, tuple(commands)))

    def _on_ended(self, outcome: Outcome) -> None:
        run, self.run = self.run, None
        assert run is not None
        self._book.end_live(LIVE)
        error = outcome.error
        if error is not None:
            text = f"{error.cause} {error.remedy}".strip()
            self.ending = (text, True)
            failed = replace(self._record(run), state=State.FAILED, cause=text)
            self.kept.emit(self._book.keep(failed))
        elif not outcome.was_cancelled:
            self.ending = (f"{run.title}: finished in {duration_text(run.seconds)}.", False)
        self.ended.emit(run, outcome)
        run.deleteLater()


def evaluation_of(made: str, source: str, text: TextChoice) -> EvaluationPlan:
    """Evaluation of a new model against its source."""
    return EvaluationPlan(ModelChoice(made), ModelChoice(source), text)
