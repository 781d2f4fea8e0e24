"""The forms of a quantization and of an evaluation, which start jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from app.features.quantize.evaluate_form import EvaluateForm
from app.features.quantize.evaluation import evaluate_command, quantize_command
from app.features.quantize.fields import ModelField
from app.features.quantize.recipe_form import RecipeForm
from app.features.quantize.start_panel import StartPanel
from app.features.runs.jobs import Jobs, evaluation_of
from engine.errors import ErrorInfo


class Offered(NamedTuple):
    """`known`: models to choose from, as (path, title); `current`: the open one; `folder`, `rates`:
    see RecipeForm."""

    known: Callable[[], Sequence[tuple[str, str]]]
    current: Callable[[], str]
    folder: Callable[[], Path]
    rates: Callable[[], Mapping[str, float]]


class JobForm(ABC):
    """A form with its start button. `models`: its fields of models; the first one is filled."""

    def __init__(
        self, jobs: Jobs, offered: Offered, panel: StartPanel, models: Sequence[ModelField]
    ) -> None:
        self._jobs, self._offered = jobs, offered
        self.panel, self._models = panel, models
        panel.start_wanted.connect(self.start)
        panel.shown.connect(self._on_shown)
        jobs.begun.connect(self._on_begun)
        jobs.ended.connect(self.offer)
        self._on_shown()
        self.offer()

    @abstractmethod
    def start(self) -> None:
        """Start the job, if the form is complete and no other runs."""

    @abstractmethod
    def offer(self, *_: object) -> None:
        """Update button and summary below the form."""

    @property
    def is_free(self) -> bool:
        """Whether no job runs."""
        return self._jobs.run is None

    @property
    def _why_not(self) -> str:
        return "" if self.is_free else "One job at a time"

    def renew_models(self) -> None:
        """Update the offered models."""
        known = self._offered.known()
        for field in self._models:
            field.set_known(known)

    def show_error(self, error: ErrorInfo) -> None:
        """Show why a job of this form has failed."""
        self.panel.show_error(f"{error.cause} {error.remedy}".strip())

    def _on_shown(self) -> None:
        """Update the offered models; preselect the open one in an empty field."""
        self.renew_models()
        path, field = self._offered.current(), self._models[0]
        if path and not field.path and Path(path).is_dir():
            field.choose(path)

    def _on_begun(self) -> None:
        self.panel.show_error("")
        self.offer()


class QuantizeJob(JobForm):
    def __init__(self, jobs: Jobs, offered: Offered) -> None:
        self.form = RecipeForm(offered.rates, offered.folder)
        panel = StartPanel(self.form, "Quantize", "Quantize and save the model")
        super().__init__(jobs, offered, panel, [self.form.fields.source])
        self.form.changed.connect(self.offer)

    def start(self) -> None:
        if self.is_free and self.form.can_start:
            text = self.form.measure_text.choice if self.form.measure.isChecked() else None
            self._jobs.quantize(self.form.plan, text)

    def measure(self, made: str, source: str) -> None:
        """Evaluate a new model against its source."""
        if self.is_free:
            self._jobs.evaluate(evaluation_of(made, source, self.form.measure_text.choice))

    def offer(self, *_: object) -> None:
        form = self.form
        command = quantize_command(form.plan) if form.facts is not None else ""
        self.panel.offer(self.is_free and form.can_start, command)
        self.panel.say(*form.summary(), self._why_not)


class EvaluateJob(JobForm):
    def __init__(self, jobs: Jobs, offered: Offered) -> None:
        self.form = EvaluateForm()
        panel = StartPanel(self.form, "Evaluate", "Measure quality and speed")
        models = [self.form.candidate.model, self.form.reference.model]
        super().__init__(jobs, offered, panel, models)
        self.form.changed.connect(self.offer)

    def start(self) -> None:
        if self.is_free and self.form.can_start:
            self._jobs.evaluate(self.form.plan)

    def offer(self, *_: object) -> None:
        form = self.form
        command = evaluate_command(form.plan) if form.can_start else ""
        self.panel.offer(self.is_free and form.can_start, command)
        self.panel.say(why=self._why_not)
