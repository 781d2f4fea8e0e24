"""Quantization form: recipe, evaluation option and predictions, checked while they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog, QWidget

from app.features.quantize.evaluate_form import TEXT_KINDS as EVALUATION_KINDS
from app.features.quantize.fields import FOR_EVALUATION, Field, TextField
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
from app.link.tasks import Task, run_task
from app.storage.model_sources import is_starter
from app.units import format_bytes
from engine.errors import ConfigError, ErrorInfo
from engine.quantize.recipe import Recipe
from widgets.controls.layouts import STRETCH, vbox
from widgets.live.figures import precision_name
from widgets.theme.theme import SPACE_3

LOOK_MS = 250
"""Delay before the text is read again."""
Rates = Callable[[], Mapping[str, float]]


class RecipeForm(QWidget):
    """`changed`: plan, problems or predictions."""

    changed = Signal()

    def __init__(
        self, rates: Rates, folder: Callable[[], Path], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._rates, self._folder = rates, folder
        self.facts: SourceFacts | None = None
        self.text_size: CalibrationSize | None = None
        self.problems: list[Problem] = []
        self._source_error: ErrorInfo | None = None
        self._text_error: ErrorInfo | None = None
        self._source_task: Task | None = None
        self._text_task: Task | None = None
        self._own_output = False  # the user chose the output
        self.fields = RecipeFields()
        self.measure = QCheckBox("Evaluate against the original")
        self.measure.setToolTip("Measure perplexity, divergence and speed, and store a report")
        self.measure.setChecked(True)
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
        fields.method_changed.connect(self._on_recipe)
        fields.changed.connect(self._on_recipe)
        fields.text.changed.connect(self._on_recipe)
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
        return self._look.isActive() or any(task is not None for task in tasks)

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

    def choose_source(self, path: str) -> None:
        """Choose the source model."""
        self.fields.source.choose(path)

    # Reading -----------------------------------------------------------------------------------

    def _on_source(self, path: str) -> None:
        if self._source_task is not None:
            self._source_task.cancel()
        self.facts, self._source_error, self._source_task = None, None, None
        self.fields.modules.show_groups((), 1)
        self.measure_text.set_choice(TextChoice(STARTER if is_starter(path) else ENGLISH))
        self._own_output = False
        if path:
            self._source_task = run_task(
                self, lambda: read_source(path), self._on_facts, self._on_source_error
            )
        self.refresh()

    def _on_facts(self, facts: SourceFacts) -> None:
        self._source_task = None
        self.facts = facts
        if facts.matrices:
            self.fields.modules.show_groups(module_groups(facts), facts.num_bytes)
            self._choose_group_size(facts)
        self._on_recipe()

    def _choose_group_size(self, facts: SourceFacts) -> None:
        """The largest size up to 128 that divides every matrix."""
        sizes = (128, 64, 32)
        fitting = [g for g in sizes if not any(m.columns % g for m in facts.matrices)]
        self.fields.set_group_size(fitting[0] if fitting else sizes[0])

    def _on_source_error(self, error: ErrorInfo) -> None:
        self._source_task = None
        self._source_error = error
        self.refresh()

    def _on_recipe(self) -> None:
        """Read the text again, after a delay, when method or text change."""
        self.text_size, self._text_error = None, None
        if self._text_task is not None:
            self._text_task.cancel()
            self._text_task = None
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
        self._text_task = run_task(
            self, lambda: measure_calibration(choice, source, recipe),
            self._on_size, self._on_text_error,
        )  # fmt: skip
        self.refresh()

    def _on_size(self, size: CalibrationSize) -> None:
        self._text_task, self.text_size = None, size
        self.refresh()

    def _on_text_error(self, error: ErrorInfo) -> None:
        self._text_task, self._text_error = None, error
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
            if name in by_field:
                field.say(by_field[name], "error")
            else:
                field.say(self._note(name))
        self._check_measured()
        self.changed.emit()

    def _check_measured(self) -> None:
        """Check the evaluation text."""
        choice = self.measure_text.choice
        calibrated_on = self.fields.text.choice
        is_english = choice == TextChoice(ENGLISH) and calibrated_on == TextChoice(PROGRAM)
        is_english = is_english and not is_starter(self.fields.source.path)
        if not self.fields.source.path:
            self.measured.say("")
        elif not choice.is_there:
            self.measured.say(f"{choice.path} does not exist. Choose another file.", "error")
        elif self.recipe.facts.is_calibrated and (is_english or choice == calibrated_on):
            self.measured.say("Same as the calibration text: results look slightly too good.")
        else:
            self.measured.say("")

    def _suggest(self) -> None:
        path = self.fields.source.path
        if path and not self._own_output:
            output = suggested_output(self._folder(), path, self.recipe)
            self.fields.output.setText(str(output))
        elif not path:
            self.fields.output.clear()

    def _find_problems(self) -> list[Problem]:
        found: list[Problem] = []
        if self._source_error is not None:
            found.append(Problem(SOURCE, self._source_error.cause, self._source_error.remedy))
        if self._text_error is not None:
            found.append(Problem(TEXT, self._text_error.cause, self._text_error.remedy))
        if self.facts is None:
            return found
        try:
            plan = self.plan
        except ConfigError as error:  # the fields offer valid values; this is a safeguard
            return [*found, Problem(METHOD, error.cause, error.remedy)]
        return [*found, *check_plan(plan, self.facts)]

    def _note(self, field: str) -> str:
        facts, recipe = self.facts, self.recipe
        if field == SOURCE:
            return self._source_note()
        if facts is None or facts.refusal is not None:
            return ""
        if field == MODULES:
            share = predict_size(facts, recipe).quantized_share
            return "" if share == 1.0 else f"Quantizes {percent(share)} of the layer weights."
        if field == TEXT:
            return self.text_size.text if self.text_size is not None else "Reading text…"
        if field == OUTPUT:
            folder = Path(self.plan.output or ".").expanduser()
            return f"{format_bytes(free_bytes(folder))} free"
        if field == GROUP_SIZE and recipe.facts.is_grouped:
            return "Smaller groups: better quality, larger file"
        return ""

    def _source_note(self) -> str:
        facts = self.facts
        if self._source_task is not None:
            return "Reading model…"
        if facts is None:
            return ""
        return f"{precision_name(facts.dtype)}, {format_bytes(facts.num_bytes)}"

    def summary(self) -> tuple[str, str]:
        """(size, time); empty where unknown."""
        facts = self.facts
        if facts is None or facts.refusal is not None or not facts.num_bytes:
            return "", ""
        recipe = self.recipe
        size = predict_size(facts, recipe).num_bytes
        share = size / facts.num_bytes
        words = f"{format_bytes(facts.num_bytes)} → about {format_bytes(size)} ({percent(share)})"
        if recipe.facts.is_calibrated and self.text_size is None:
            return words, ""
        tokens = self.text_size.num_tokens if self.text_size is not None else 0
        rates = self._rates()
        seconds = predict_seconds(facts, recipe, tokens, rates)
        source = "from earlier runs" if recipe.method in rates else "rough estimate"
        return words, f"{about(seconds)} ({source})"
