"""Which precision stands on the right: boxes for weights, output head and KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QWidget

from app.precision.choices import HEAD, ROUNDED, WEIGHTS, Checkpoint
from engine.config import SETTINGS, EngineConfig
from widgets.choice_items import describe_items
from widgets.theme import SPACE_2

KV = "kv_cache_dtype"
_LABELS = {WEIGHTS: "Weights", HEAD: "Output head", KV: "KV cache"}


class PrecisionChoice(QWidget):
    """`changed` when another precision was chosen."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[str, QComboBox] = {}
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        for name in (name for name in _LABELS if name in SETTINGS):
            box = self.boxes[name] = QComboBox()
            box.setAccessibleName(f"{_LABELS[name]} of the right side")
            box.setToolTip(SETTINGS[name].help)
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            box.setMinimumContentsLength(11)
            for value in SETTINGS[name].choices:
                box.addItem(value, value)
            box.activated.connect(lambda: self.changed.emit())
            row.addWidget(QLabel(_LABELS[name]))
            row.addWidget(box)
        self._is_touched = False
        self.changed.connect(self._touch)

    @property
    def settings(self) -> dict[str, Any]:
        """What is chosen, in the words of the engine's settings."""
        return {name: box.currentData() for name, box in self.boxes.items()}

    @property
    def text(self) -> str:
        """What is chosen, for a person."""
        parts = [self.boxes[WEIGHTS].currentText().partition(" · ")[0] + " weights"]
        if self.boxes[HEAD].currentData() != SETTINGS[HEAD].default:
            parts.append(f"{self.boxes[HEAD].currentData()} head")
        if KV in self.boxes and self.boxes[KV].currentData() != SETTINGS[KV].default:
            parts.append(f"KV {self.boxes[KV].currentText()}")
        return " · ".join(parts)

    def choose(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            box = self.boxes[name]
            if box.findData(value) < 0:
                box.addItem(f"{value}", value)
            box.setCurrentIndex(box.findData(value))
        self.changed.emit()

    def show_engine(self, config: EngineConfig, known: Checkpoint | None) -> None:
        """What is possible with the model that is loaded; something else than it has, until the
        user has chosen."""
        if known is not None:
            head = self.boxes[HEAD].currentData()
            weights = known.of_weights(head, config.dtype)
            describe_items(self.boxes[WEIGHTS], [(c.value, c.text, c.refusal) for c in weights])
            heads = known.of_head(self.boxes[WEIGHTS].currentData())
            describe_items(self.boxes[HEAD], [(c.value, c.text, c.refusal) for c in heads])
        if not self._is_touched:
            self._suggest(config, known)

    def show_model(self, config: EngineConfig) -> None:
        """Another model than the loaded one: nothing is known of its checkpoint, so the engine says
        what cannot be."""
        for name, box in self.boxes.items():
            describe_items(box, [(value, value, "") for value in SETTINGS[name].choices])
            box.setCurrentIndex(max(0, box.findData(getattr(config, name))))
        self._is_touched = False

    def forget(self) -> None:
        """What the user has chosen: the next `show_engine` suggests again."""
        self._is_touched = False

    def _suggest(self, config: EngineConfig, known: Checkpoint | None) -> None:
        """The other of plain weights and int8; of a quantized checkpoint another output head."""
        suggested = {name: getattr(config, name) for name in self.boxes}
        if known is not None and known.method:
            suggested[HEAD] = "none" if config.quantization_head == "int8" else "int8"
        else:
            suggested[WEIGHTS] = "none" if config.quantization in ROUNDED else "int8"
        for name, value in suggested.items():
            box = self.boxes[name]
            if box.findData(value) < 0:
                box.addItem(f"{value}", value)
            box.setCurrentIndex(box.findData(value))

    def _touch(self) -> None:
        self._is_touched = True
