"""`JobForms`: the forms of a quantization and of an evaluation, which start jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import QObject

from app.features.quantize.evaluate_form import EvaluateForm
from app.features.quantize.evaluation import evaluate_command, quantize_command
from app.features.quantize.recipe_form import RecipeForm
from app.features.quantize.run import Run
from app.features.quantize.start_panel import StartPanel
from app.features.runs.jobs import Jobs, evaluation_of
from engine.errors import ErrorInfo


class JobForms(QObject):
    """`known`: models to choose from, as (path, title); `current`: the open one; `folder`, `rates`:
    see RecipeForm."""

    def __init__(
        self,
        jobs: Jobs,
        known: Callable[[], Sequence[tuple[str, str]]],
        current: Callable[[], str],
        folder: Callable[[], Path],
        rates: Callable[[], Mapping[str, float]],
    ) -> None:
        super().__init__(jobs)
        self._jobs, self._known, self._current = jobs, known, current
        self.recipe = RecipeForm(rates, folder)
        self.evaluate = EvaluateForm()
        self.quantize_panel = StartPanel(self.recipe, "Quantize", "Quantize and save the model")
        self.evaluate_panel = StartPanel(self.evaluate, "Evaluate", "Measure quality and speed")
        self.recipe.changed.connect(self.offer)
        self.evaluate.changed.connect(self.offer)
        self.quantize_panel.start_wanted.connect(self.start_quantizing)
        self.evaluate_panel.start_wanted.connect(self.start_evaluating)
        jobs.begun.connect(self._on_begun)
        self.offer()

    def start_quantizing(self) -> None:
        if self._jobs.run is None and self.recipe.can_start:
            text = self.recipe.measure_text.choice if self.recipe.measure.isChecked() else None
            self._jobs.quantize(self.recipe.plan, text)

    def start_evaluating(self) -> None:
        if self._jobs.run is None and self.evaluate.can_start:
            self._jobs.evaluate(self.evaluate.plan)

    def measure(self, made: str, source: str) -> None:
        """Evaluate a new model against its source."""
        if self._jobs.run is None:
            self._jobs.evaluate(evaluation_of(made, source, self.recipe.measure_text.choice))

    def _on_begun(self) -> None:
        for panel in (self.quantize_panel, self.evaluate_panel):
            panel.show_error("")
        self.offer()

    def show_end(self, run: Run, error: ErrorInfo | None) -> None:
        if error is not None:
            panel = self.quantize_panel if run.quantize is not None else self.evaluate_panel
            panel.show_error(f"{error.cause} {error.remedy}".strip())
        self.offer()

    def renew_models(self) -> None:
        """Update the offered models."""
        known = self._known()
        for field in (self.recipe.fields.source, self.evaluate.candidate.model,
                      self.evaluate.reference.model):  # fmt: skip
            field.set_known(known)

    def choose_current(self) -> None:
        """Preselect the open model in empty fields."""
        path = self._current()
        if path and Path(path).is_dir():
            for field in (self.recipe.fields.source, self.evaluate.candidate.model):
                if not field.path:
                    field.choose(path)

    def offer(self) -> None:
        """Update buttons and summaries below the forms."""
        is_free = self._jobs.run is None
        busy = "" if is_free else "One job at a time"
        recipe, evaluate = self.recipe, self.evaluate
        command = quantize_command(recipe.plan) if recipe.facts is not None else ""
        self.quantize_panel.offer(is_free and recipe.can_start, command)
        self.quantize_panel.say(*recipe.summary(), busy)
        has_model = bool(evaluate.candidate.model.path)
        command = evaluate_command(evaluate.plan) if has_model and evaluate.can_start else ""
        self.evaluate_panel.offer(is_free and evaluate.can_start, command)
        self.evaluate_panel.say(why=busy)
