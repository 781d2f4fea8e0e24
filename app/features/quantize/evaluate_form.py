"""Evaluation form: model, reference, text and options, checked while they change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFrame,
    QLineEdit,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.features.models.precision import ROUNDED
from app.features.quantize.evaluation import (
    CANDIDATE_SETTINGS,
    REFERENCE_SETTINGS,
    EvaluationPlan,
    ModelChoice,
)
from app.features.quantize.fields import FOR_EVALUATION, Field, ModelField, TextField, path_button
from app.features.quantize.texts import STARTER, TextChoice
from app.storage.model_sources import is_starter
from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError
from engine.evaluate import PROMPT_LINES, read_prompts
from engine.evaluate.windows import DEFAULT_CONTEXT
from engine.quantize.recipe import GROUP_SIZES
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import vbox
from widgets.live.figures import precision_name
from widgets.theme.theme import SPACE_3, figure_font

_IN_A_ROW = 3
_TITLES = {"quantization_group_size": "Group size", "quantization_head": "Output head"}
_LABELS = {
    "quantization": {"none": "unquantized"},
    "quantization_head": {"none": "unquantized"},
}
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
        self.model = ModelField(f"{title}: folder", empty_text)
        self.model.changed.connect(lambda _: self.changed.emit())
        self.model_field = Field(title, self.model)
        self.settings = {name: _choices(name, title) for name in names}
        self._fields = {
            name: Field(_TITLES.get(name, SETTINGS[name].label), combo)
            for name, combo in self.settings.items()
        }
        layout = vbox(self.model_field, of=self)
        fields = list(self._fields.values())
        for first in range(0, len(fields), _IN_A_ROW):
            row = fields[first : first + _IN_A_ROW]
            self.line = Field("", *row)  # the last row has the note
            for place in range(len(row)):
                self.line.row.setStretch(place, 1)
            layout.addWidget(self.line)
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
    combo.setToolTip(SETTINGS[name].help)
    labels = _LABELS.get(name, {})
    values = _QUANTIZATIONS if name == "quantization" else SETTINGS[name].choices
    for value in (*values, *_MORE.get(name, ())):
        combo.addItem(labels.get(str(value), precision_name(str(value))), value)
    combo.setCurrentIndex(max(0, combo.findData(SETTINGS[name].default)))
    combo.setMinimumContentsLength(5)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    return combo


TEXT_KINDS = "Texts (*.txt *.md);;All files (*)"
AGAINST = (
    "Measures the perplexity of both, and the divergence of the model's next-token probabilities."
)
SAME = "Both are equal: measures perplexity only. Choose another precision or folder to compare."
"""One of them is always shown, of similar length: the form below does not move."""
LARGEST_READ_HERE = 1 << 20
"""Bytes: larger prompt files are checked when the evaluation starts."""


class EvaluateForm(QWidget):
    """`changed`: the plan, or its problems."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.candidate = SideFields("Model", "Choose a model", CANDIDATE_SETTINGS)
        self.reference = SideFields("Reference", "Same model", REFERENCE_SETTINGS)
        self.text = TextField("Text", TEXT_KINDS, FOR_EVALUATION)
        self._make_numbers()
        self._make_options()
        self._arrange()
        self.candidate.model.changed.connect(self._on_model)
        for changed in (self.candidate.changed, self.reference.changed, self.text.changed):
            changed.connect(self.refresh)
        self.refresh()

    def _make_numbers(self) -> None:
        self.context, self.most = QSpinBox(), QSpinBox()
        self.context.setRange(0, 1_048_576)
        self.context.setSpecialValueText(f"up to {DEFAULT_CONTEXT:,}")
        self.context.setSingleStep(128)
        self.context.setAccessibleName("Window length")
        self.context.setToolTip(
            f"Window length in tokens (0: the model's maximum, up to {DEFAULT_CONTEXT:,})"
        )
        self.most.setRange(0, 16_777_216)
        self.most.setSpecialValueText("all")
        self.most.setSingleStep(1000)
        self.most.setAccessibleName("Maximum length")
        self.most.setToolTip("Maximum length in tokens (0: no limit)")
        for box in (self.context, self.most):
            box.setFont(figure_font())
            box.setKeyboardTracking(False)
            box.setGroupSeparatorShown(True)
            box.valueChanged.connect(self.refresh)

    def _make_options(self) -> None:
        self.speed = QCheckBox("Measure single-request speed")
        self.speed.setToolTip("Prefill and decode throughput of both models, in tokens/s")
        self.speed.setChecked(True)
        self.speed.toggled.connect(self.refresh)
        self.prompts = QLineEdit()
        self.prompts.setPlaceholderText("None (JSONL file)")
        self.prompts.setAccessibleName("Prompt file")
        self.prompts.setToolTip(PROMPT_LINES)
        self.prompts.editingFinished.connect(self.refresh)
        self.browse = path_button("Choose prompt file")
        self.browse.setToolTip(PROMPT_LINES)
        self.browse.clicked.connect(self._browse)

    def _arrange(self) -> None:
        line = QFrame()
        line.setProperty("line", True)
        self.text_field = Field("Text", self.text)
        numbers = Field("", Field("Window", self.context), Field("Max tokens", self.most))
        for place in (0, 1):
            numbers.row.setStretch(place, 1)
        self.prompts_field = Field("Prompts", self.prompts, self.browse)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_3)
        for widget in (self.candidate, self.reference, line, self.text_field, numbers,
                       self.prompts_field, self.speed):  # fmt: skip
            column.addWidget(widget)
        column.addStretch(1)

    # What is chosen ----------------------------------------------------------------------------

    @property
    def plan(self) -> EvaluationPlan:
        return EvaluationPlan(
            self.candidate.choice(), self.reference.choice(), self.text.choice,
            self.prompts.text().strip(), self.context.value() or None, self.most.value() or None,
            self.speed.isChecked(),
        )  # fmt: skip

    def show_plan(self, plan: EvaluationPlan) -> None:
        """Show `plan` in the form."""
        self.candidate.set_choice(plan.candidate)
        self.reference.set_choice(plan.reference)
        if plan.text is not None:
            self.text.set_choice(plan.text)
        self.prompts.setText(plan.prompts)
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
        kinds = "Prompts (*.jsonl *.ndjson);;All files (*)"
        file, _ = QFileDialog.getOpenFileName(self, "Prompt file", "", kinds)
        if file:
            self.prompts.setText(file)
            self.refresh()

    # Showing -----------------------------------------------------------------------------------

    def refresh(self, *_: Any) -> None:
        """Check everything again, and show problems at their fields."""
        self._check_sides()
        _say_error(self.text_field, lambda: self._check_text(), "")
        prompts = self.prompts.text().strip()
        _say_error(self.prompts_field, lambda: self._check_prompts(prompts),
                   "Compares the answers token by token" if prompts else "")  # fmt: skip
        self.changed.emit()

    def _check_sides(self) -> None:
        for side in (self.candidate, self.reference):
            path = side.model.path
            gone = bool(path) and not Path(path).exists()
            side.model_field.say("This folder no longer exists." if gone else "",
                                 "error" if gone else "small")  # fmt: skip
        self.candidate.line.say("")
        self.reference.line.say(AGAINST)
        if not self.candidate.model.path:
            return
        try:
            _, reference = self.plan.configs()
        except ConfigError as error:
            self.candidate.line.say(f"{error.cause} {error.remedy}", "error")
            return
        if reference is None:
            self.reference.line.say(SAME)

    def _check_text(self) -> None:
        if not self.text.choice.is_there:
            raise InferdeckError(f"{self.text.choice.path} does not exist.", "Choose another file.")

    @staticmethod
    def _check_prompts(prompts: str) -> None:
        file = Path(prompts).expanduser()
        if prompts and not file.is_file():
            raise InferdeckError(f"{file} does not exist.", "Choose another file.")
        if prompts and file.stat().st_size <= LARGEST_READ_HERE:
            read_prompts(file)


def _say_error(field: Field, check: Any, note: str) -> None:
    try:
        check()
    except InferdeckError as error:
        field.say(f"{error.cause} {error.remedy}", "error")
    else:
        field.say(note)
