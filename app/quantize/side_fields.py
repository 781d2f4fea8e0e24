"""One of the two models of an evaluation: its folder, and its precision."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from app.quantize.evaluation import ModelChoice
from app.quantize.fields import Field, ModelField
from engine.config import SETTINGS
from engine.quantization.recipe import GROUP_SIZES
from widgets.elided_combo import ElidedCombo
from widgets.theme import SPACE_2

_IN_A_ROW = 3
_TITLES = {"quantization_group_size": "Group size", "quantization_head": "Output head"}
_WORDS = {
    "quantization": {
        "auto": "as stored", "none": "unquantized", "int8": "int8", "int4": "int4", "nf4": "NF4",
        "fp8": "fp8",
    },
    "quantization_head": {"none": "plain"},
    "kv_cache_dtype": {"auto": "plain"},
    "dtype": {"auto": "automatic"},
}  # fmt: skip
_MORE: dict[str, Sequence[object]] = {
    "kv_cache_dtype": ("k=int8,v=fp8", "k=auto,v=int8", "k=auto,v=fp8"),
    "quantization_group_size": GROUP_SIZES,
}
"""Values that are no choices of their own, and that people want to measure."""


class SideFields(QWidget):
    """`names`: the settings that can be chosen. `changed` by the user's doing."""

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
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.model_field)
        fields = list(self._fields.values())
        for first in range(0, len(fields), _IN_A_ROW):
            row = fields[first : first + _IN_A_ROW]
            self.line = Field("", *row)  # the last one has the note
            for place in range(len(row)):
                self.line.row.setStretch(place, 1)
            layout.addWidget(self.line)
        for combo in self.settings.values():
            combo.currentIndexChanged.connect(self._on_setting)
        self._show_fitting()

    def choice(self) -> ModelChoice:
        """The folder, with the settings that are not left as they are."""
        chosen = {
            name: combo.currentData()
            for name, combo in self.settings.items()
            if combo.isEnabled() and combo.currentData() != SETTINGS[name].default
        }
        return ModelChoice(self.model.path, chosen)

    def set_choice(self, choice: ModelChoice) -> None:
        """Show it, without the folder's signal."""
        self.model.set_path(choice.path)
        for name, combo in self.settings.items():
            value = choice.settings.get(name, SETTINGS[name].default)
            combo.setCurrentIndex(max(0, combo.findData(value)))

    def _on_setting(self) -> None:
        self._show_fitting()
        self.changed.emit()

    def _show_fitting(self) -> None:
        """Groups are int4's."""
        group = self.settings.get("quantization_group_size")
        if group is not None:
            group.setEnabled(self.settings["quantization"].currentData() == "int4")


def _choices(name: str, title: str) -> QComboBox:
    combo = ElidedCombo()
    combo.setAccessibleName(f"{title}: {SETTINGS[name].label}")
    combo.setToolTip(SETTINGS[name].help)
    words = _WORDS.get(name, {})
    for value in (*SETTINGS[name].choices, *_MORE.get(name, ())):
        if name != "quantization" or value in words:
            combo.addItem(words.get(str(value), str(value)), value)
    combo.setCurrentIndex(max(0, combo.findData(SETTINGS[name].default)))
    combo.setMinimumContentsLength(5)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    return combo
