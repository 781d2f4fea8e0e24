"""Evaluation form: model, reference, text and options, checked while they change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFileDialog, QFrame, QWidget

from app.features.models.precision import ROUNDED
from app.features.quantize.evaluation import (
    CANDIDATE_SETTINGS,
    REFERENCE_SETTINGS,
    EvaluationPlan,
    ModelChoice,
)
from app.features.quantize.fields import (
    FOR_EVALUATION,
    Field,
    ModelField,
    TextField,
    line_field,
    number_field,
    path_button,
    switch_field,
)
from app.features.quantize.texts import STARTER, TextChoice
from app.storage.model_sources import is_starter
from app.window.setting_specs import help_of
from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError
from engine.evaluate import PROMPT_LINES, RAW_PROMPTS, read_prompts
from engine.evaluate.windows import DEFAULT_CONTEXT
from engine.quantize.recipe import GROUP_SIZES
from engine.units import precision_name
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import STRETCH, vbox
from widgets.theme.theme import SPACE_3

_IN_A_ROW = 3
_TITLES = {"quantization_group_size": "Group size", "quantization_head": "LM head"}
_LABELS = {"quantization": {"none": "unquantized"}, "quantization_head": {"none": "unquantized"}}
_QUANTIZATIONS = ("auto", "none", *ROUNDED)
_MORE: dict[str, Sequence[object]] = {
    "kv_cache_dtype": ("k=int8,v=fp8", "k=auto,v=int8", "k=auto,v=fp8"),
    "quantization_group_size": GROUP_SIZES,
}
"""Further values that are useful to measure."""


class SideFields(QWidget):
    """A model folder with the settings `names`. `changed` by the user."""

    changed = Signal()

    def __init__(self, title: str, empty_text: str, names: Sequence[str]) -> None:
        super().__init__()
        self.model = ModelField(f"{title} folder", empty_text)
        self.model.changed.connect(lambda _: self.changed.emit())
        self.model_field = Field(title, self.model)
        self.settings = {name: _choices(name, title) for name in names}
        fields = [
            Field(_TITLES.get(name, SETTINGS[name].label), combo)
            for name, combo in self.settings.items()
        ]
        lines = [
            Field("", *fields[first : first + _IN_A_ROW])
            for first in range(0, len(fields), _IN_A_ROW)
        ]
        self.line = lines[-1]  # it has the note
        vbox(self.model_field, *lines, of=self)
        for combo in self.settings.values():
            combo.currentIndexChanged.connect(self._on_setting)
        self._show_fitting()

    def choice(self) -> ModelChoice:
        """The folder, with the settings that differ from their defaults."""
        chosen = {
            name: combo.currentData()
            for name, combo in self.settings.items()
            if combo.isEnabled() and combo.currentData() != SETTINGS[name].default
        }
        return ModelChoice(self.model.path, chosen)

    def set_choice(self, choice: ModelChoice) -> None:
        """Show it, without a signal."""
        self.model.set_path(choice.path)
        for name, combo in self.settings.items():
            value = choice.settings.get(name, SETTINGS[name].default)
            combo.setCurrentIndex(max(0, combo.findData(value)))

    def _on_setting(self) -> None:
        self._show_fitting()
        self.changed.emit()

    def _show_fitting(self) -> None:
        """Enable the group size for INT4 only."""
        group = self.settings.get("quantization_group_size")
        if group is not None:
            group.setEnabled(self.settings["quantization"].currentData() == "int4")


def _choices(name: str, title: str) -> QComboBox:
    combo = ElidedCombo()
    combo.setAccessibleName(f"{title}: {SETTINGS[name].label}")
    combo.setToolTip(help_of(SETTINGS[name]))
    labels = _LABELS.get(name, {})
    values = _QUANTIZATIONS if name == "quantization" else SETTINGS[name].choices
    for value in (*values, *_MORE.get(name, ())):
        combo.addItem(labels.get(str(value), precision_name(str(value))), value)
    combo.setCurrentIndex(max(0, combo.findData(SETTINGS[name].default)))
    combo.setMinimumContentsLength(5)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    return combo


TEXT_KINDS = "Text files (*.txt *.md);;All files (*)"
AGAINST = (
    "Measures the perplexity of both models and the KL divergence of next-token probabilities."
)
SAME = "Model and reference are identical: only perplexity is measured. Choose another reference."
"""Notes of similar length: one is always shown, so the form below does not move."""
LARGEST_READ_HERE = 1 << 20
"""Bytes: larger prompt files are checked when the evaluation starts."""


class EvaluateForm(QWidget):
    """`changed`: the plan, or its problems."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.candidate = SideFields("Model", "Choose a model", CANDIDATE_SETTINGS)
        self.reference = SideFields("Reference", "Same model", REFERENCE_SETTINGS)
        self.text = TextField("Text", TEXT_KINDS, FOR_EVALUATION)
        self.context = number_field(
            "Window length",
            f"Window length in tokens (0: the model's maximum, up to {DEFAULT_CONTEXT:,})",
            (0, 1_048_576), 128, 0, f"up to {DEFAULT_CONTEXT:,}",
        )  # fmt: skip
        self.most = number_field(
            "Maximum length", "Maximum length in tokens (0: no limit)",
            (0, 16_777_216), 1000, 0, "all",
        )  # fmt: skip
        self.speed = switch_field(
            "Measure single-request speed",
            "Prefill and decode throughput of both models, in tokens/s",
            is_on=True,
        )
        self.prompts = line_field("Prompt file", "Optional: JSONL, CSV or text", PROMPT_LINES)
        self.raw = switch_field("Raw prompts", RAW_PROMPTS)
        self.browse = path_button("Choose prompt file")
        self.browse.setToolTip(PROMPT_LINES)
        self.browse.clicked.connect(self._browse)
        self._arrange()
        self.candidate.model.changed.connect(self._on_model)
        for changed in (
            self.candidate.changed, self.reference.changed, self.text.changed, self.speed.toggled,
            self.context.valueChanged, self.most.valueChanged, self.prompts.editingFinished,
            self.raw.toggled,
        ):  # fmt: skip
            changed.connect(self.refresh)
        self.refresh()

    def _arrange(self) -> None:
        line = QFrame()
        line.setProperty("line", True)
        self.text_field = Field("Text", self.text)
        numbers = Field("", Field("Window", self.context), Field("Text limit", self.most))
        self.prompts_field = Field("Prompts", self.prompts, self.browse, self.raw)
        vbox(
            self.candidate, self.reference, line, self.text_field, numbers, self.prompts_field,
            self.speed, STRETCH, of=self, spacing=SPACE_3,
        )  # fmt: skip

    # What is chosen ----------------------------------------------------------------------------

    @property
    def plan(self) -> EvaluationPlan:
        return EvaluationPlan(
            self.candidate.choice(), self.reference.choice(), self.text.choice,
            self.prompts.text().strip(), self.context.value() or None, self.most.value() or None,
            self.speed.isChecked(), raw_prompts=self.raw.isChecked(),
        )  # fmt: skip

    def show_plan(self, plan: EvaluationPlan) -> None:
        """Show `plan` in the form."""
        self.candidate.set_choice(plan.candidate)
        self.reference.set_choice(plan.reference)
        if plan.text is not None:
            self.text.set_choice(plan.text)
        self.prompts.setText(plan.prompts)
        self.raw.setChecked(plan.raw_prompts)
        self.context.setValue(plan.context_length or 0)
        self.most.setValue(plan.max_tokens or 0)
        self.speed.setChecked(plan.measure_speed)
        self.refresh()

    @property
    def can_start(self) -> bool:
        fields = (self.candidate.model_field, self.candidate.line, self.reference.model_field,
                  self.text_field, self.prompts_field)  # fmt: skip
        return bool(self.candidate.model.path) and not any(f.has_problem for f in fields)

    def _on_model(self, path: str) -> None:
        self.text.set_choice(TextChoice(STARTER) if is_starter(path) else self.text.choice)

    def _browse(self) -> None:
        kinds = "Prompt files (*.jsonl *.ndjson *.csv *.txt);;All files (*)"
        file, _ = QFileDialog.getOpenFileName(self, "Prompt file", "", kinds)
        if file:
            self.prompts.setText(file)
            self.refresh()

    # Showing -----------------------------------------------------------------------------------

    def refresh(self, *_: Any) -> None:
        """Check everything again, and show problems at their fields."""
        for side in (self.candidate, self.reference):
            is_gone = bool(side.model.path) and not Path(side.model.path).exists()
            side.model_field.say_problem("This folder does not exist." if is_gone else "")
        problem, note = "", AGAINST
        try:
            if self.candidate.model.path and self.plan.configs()[1] is None:
                note = SAME
        except ConfigError as error:
            problem = f"{error.cause} {error.remedy}"
        self.candidate.line.say_problem(problem)
        self.reference.line.say(note)
        text, prompts = self.text.choice, self.prompts.text().strip()
        self.text_field.say_problem("" if text.is_there else _missing(text.path))
        about = "Compares replies of both models token by token" if prompts else ""
        self.prompts_field.say_problem(_prompts_problem(prompts), about)
        self.changed.emit()


def _missing(file: Path) -> str:
    return f"{file} does not exist. Choose another file."


def _prompts_problem(prompts: str) -> str:
    file = Path(prompts).expanduser()
    if prompts and not file.is_file():
        return _missing(file)
    try:
        if prompts and file.stat().st_size <= LARGEST_READ_HERE:
            read_prompts(file)
    except InferdeckError as error:
        return f"{error.cause} {error.remedy}"
    return ""
