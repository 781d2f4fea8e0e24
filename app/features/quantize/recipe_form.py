"""Quantization form: recipe, evaluation option and predictions, checked while they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.quantize.evaluate_form import TEXT_KINDS as EVALUATION_KINDS
from app.features.quantize.fields import FOR_EVALUATION, Field, TextField, switch_field
from app.features.quantize.figures import percent
from app.features.quantize.plan import (
    GROUP_SIZE,
    METHOD,
    MODULES,
    OUTPUT,
    SOURCE,
    TEXT,
    Problem,
    QuantizePlan,
    check_plan,
    free_bytes,
    predict_seconds,
    predict_size,
    suggested_output,
)
from app.features.quantize.recipe_fields import RecipeFields
from app.features.quantize.run import about
from app.features.quantize.source import SourceFacts, module_groups, read_source
from app.features.quantize.texts import (
    ENGLISH,
    PROGRAM,
    STARTER,
    CalibrationSize,
    TextChoice,
    measure_calibration,
)
from app.link.tasks import LatestTask
from app.storage.model_sources import is_starter
from engine.errors import ConfigError, ErrorInfo
from engine.quantize.recipe import Recipe
from engine.units import bytes_text, precision_name
from widgets.controls.layouts import STRETCH, vbox
from widgets.theme.theme import SPACE_3

LOOK_MS = 250
"""Delay before the text is read again."""
Rates = Callable[[], Mapping[str, float]]


class RecipeForm(QWidget):
    """`changed`: plan, problems or predictions."""

    changed = Signal()

    def __init__(self, rates: Rates, folder: Callable[[], Path]) -> None:
        super().__init__()
        self._rates, self._folder = rates, folder
        self.facts: SourceFacts | None = None
        self.text_size: CalibrationSize | None = None
        self.problems: list[Problem] = []
        self._errors: dict[str, ErrorInfo] = {}  # of reading, by field
        self._source_task, self._text_task = LatestTask(self), LatestTask(self)
        self._own_output = False  # the user chose the output
        self.fields = RecipeFields()
        self.measure = switch_field(
            "Evaluate against the original",
            "Measure perplexity, divergence and speed, and save a report",
            is_on=True,
        )
        self.measure_text = TextField("Evaluation text", EVALUATION_KINDS, FOR_EVALUATION)
        self.measure_text.changed.connect(self.refresh)
        self.measured = Field("", self.measure_text)
        self.measure.toggled.connect(self.measured.setVisible)
        vbox(self.fields, self.measure, self.measured, STRETCH, of=self, spacing=SPACE_3)
        self._look = QTimer(self)
        self._look.setSingleShot(True)
        self._look.setInterval(LOOK_MS)
        self._look.timeout.connect(self._measure_text)
        fields = self.fields
        fields.source.changed.connect(self._on_source)
        fields.changed.connect(self._on_recipe)
        fields.modules.changed.connect(self.refresh)
        fields.output.textEdited.connect(self._on_output)
        fields.browse.clicked.connect(self._browse)
        self.refresh()

    # What is chosen ----------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        return self.fields.recipe()

    @property
    def plan(self) -> QuantizePlan:
        fields = self.fields
        return QuantizePlan(
            fields.source.path, self.recipe, fields.output.text().strip(), fields.text.choice
        )

    @property
    def is_looking(self) -> bool:
        """Whether model or text are still being read."""
        tasks = (self._source_task, self._text_task)
        return self._look.isActive() or any(task.is_running for task in tasks)

    @property
    def can_start(self) -> bool:
        needs_text = self.recipe.facts.is_calibrated
        known = self.facts is not None and (self.text_size is not None or not needs_text)
        if self.measure.isChecked() and self.measured.has_problem:
            return False
        return known and not self.problems and not self.is_looking

    def forget_output(self) -> None:
        """Suggest a new output folder."""
        self._own_output = False
        self.refresh()

    # Reading -----------------------------------------------------------------------------------

    def _on_source(self, path: str) -> None:
        self._source_task.cancel()
        self._errors.pop(SOURCE, None)
        self.facts, self._own_output = None, False
        self.fields.modules.show_groups((), 1)
        self.measure_text.set_choice(TextChoice(STARTER if is_starter(path) else ENGLISH))
        if path:
            self._source_task.run(
                lambda: read_source(path), self._on_facts, partial(self._on_error, SOURCE)
            )
        self.refresh()

    def _on_facts(self, facts: SourceFacts) -> None:
        self.facts = facts
        if facts.matrices:
            self.fields.modules.show_groups(module_groups(facts), facts.num_bytes)
            sizes = (128, 64, 32)  # the largest that divides every matrix
            fitting = [g for g in sizes if not any(m.columns % g for m in facts.matrices)]
            self.fields.set_group_size(fitting[0] if fitting else sizes[0])
        self._on_recipe()

    def _on_error(self, field: str, error: ErrorInfo) -> None:
        self._errors[field] = error
        self.refresh()

    def _on_recipe(self) -> None:
        """Read the text again, after a delay, when method or text change."""
        self.text_size = None
        self._errors.pop(TEXT, None)
        self._text_task.cancel()
        if self._can_read_text:
            self._look.start()
        else:
            self._look.stop()
        self.refresh()

    @property
    def _can_read_text(self) -> bool:
        readable = self.facts is not None and self.facts.refusal is None
        return readable and self.recipe.facts.is_calibrated

    def _measure_text(self) -> None:
        if not self._can_read_text:
            return
        choice, source, recipe = self.fields.text.choice, self.fields.source.path, self.recipe
        self._text_task.run(
            lambda: measure_calibration(choice, source, recipe),
            self._on_size, partial(self._on_error, TEXT),
        )  # fmt: skip
        self.refresh()

    def _on_size(self, size: CalibrationSize) -> None:
        self.text_size = size
        self.refresh()

    def _on_output(self) -> None:
        self._own_output = bool(self.fields.output.text().strip())
        self.refresh()

    def _browse(self) -> None:
        current = self.fields.output.text()
        name = Path(current).name
        folder = QFileDialog.getExistingDirectory(self, "Output folder", str(Path(current).parent))
        if folder:
            self._own_output = True
            chosen = Path(folder)
            self.fields.output.setText(str(chosen / name if any(chosen.iterdir()) else chosen))
            self.refresh()

    # Showing -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Check everything again, and update notes and predictions."""
        self._suggest()
        self.problems = self._find_problems()
        by_field = {problem.field: problem.text for problem in reversed(self.problems)}
        for name, field in self.fields.by_name.items():
            field.say_problem(by_field.get(name, ""), self._note(name))
        self._check_measured()
        self.changed.emit()

    def _check_measured(self) -> None:
        """Check the evaluation text."""
        choice = self.measure_text.choice
        calibrated_on = self.fields.text.choice
        is_english = choice == TextChoice(ENGLISH) and calibrated_on == TextChoice(PROGRAM)
        is_english = is_english and not is_starter(self.fields.source.path)
        problem = note = ""
        if not choice.is_there:
            problem = f"{choice.path} does not exist. Choose another file."
        elif self.recipe.facts.is_calibrated and (is_english or choice == calibrated_on):
            note = "Same as the calibration text: results will be slightly optimistic."
        is_chosen = bool(self.fields.source.path)
        self.measured.say_problem(problem if is_chosen else "", note if is_chosen else "")

    def _suggest(self) -> None:
        path = self.fields.source.path
        if path and not self._own_output:
            output = suggested_output(self._folder(), path, self.recipe)
            self.fields.output.setText(str(output))
        elif not path:
            self.fields.output.clear()

    def _find_problems(self) -> list[Problem]:
        found = [Problem(field, f"{e.cause} {e.remedy}") for field, e in self._errors.items()]
        if self.facts is None:
            return found
        try:
            plan = self.plan
        except ConfigError as error:  # the fields offer valid values; this is a safeguard
            return [*found, Problem(METHOD, f"{error.cause} {error.remedy}")]
        return [*found, *check_plan(plan, self.facts)]

    def _note(self, field: str) -> str:
        facts, recipe = self.facts, self.recipe
        if field == SOURCE and self._source_task.is_running:
            return "Reading model…"
        if field == SOURCE and facts is not None:
            return f"{precision_name(facts.dtype)}, {bytes_text(facts.num_bytes)}"
        if facts is None or facts.refusal is not None:
            return ""
        if field == MODULES:
            share = predict_size(facts, recipe).quantized_share
            return "" if share == 1.0 else f"Quantizes {percent(share)} of the layer weights."
        if field == TEXT:
            return self.text_size.text if self.text_size is not None else "Reading text…"
        if field == OUTPUT:
            folder = Path(self.plan.output or ".").expanduser()
            return f"{bytes_text(free_bytes(folder))} free"
        if field == GROUP_SIZE and recipe.facts.is_grouped:
            return "Smaller groups: better quality, larger file"
        return ""

    def summary(self) -> tuple[str, str]:
        """(size, time); empty where unknown."""
        facts = self.facts
        if facts is None or facts.refusal is not None or not facts.num_bytes:
            return "", ""
        recipe = self.recipe
        size = predict_size(facts, recipe).num_bytes
        share = size / facts.num_bytes
        words = f"{bytes_text(facts.num_bytes)} → about {bytes_text(size)} ({percent(share)})"
        if recipe.facts.is_calibrated and self.text_size is None:
            return words, ""
        tokens = self.text_size.num_tokens if self.text_size is not None else 0
        rates = self._rates()
        seconds = predict_seconds(facts, recipe, tokens, rates)
        source = "based on earlier runs" if recipe.method in rates else "rough estimate"
        return words, f"{about(seconds)} ({source})"
