"""Which precision stands on a side: boxes for weights, output head and KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QWidget

from app.compare.boxes import named_box, under_its_name
from app.precision.choices import HEAD, ROUNDED, WEIGHTS, Checkpoint
from engine.config import SETTINGS, EngineConfig
from widgets.choice_items import describe_items
from widgets.theme import SPACE_2

KV = "kv_cache_dtype"
_LABELS = {WEIGHTS: "Weights", HEAD: "Output head", KV: "KV cache"}


class PrecisionChoice(QWidget):
    """`changed` when another precision was chosen."""

    changed = Signal()

    def __init__(self, where: str) -> None:
        """`where`: "left" or "right"."""
        super().__init__()
        self.boxes: dict[str, QComboBox] = {}
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        for name in (name for name in _LABELS if name in SETTINGS):
            box = named_box(f"{_LABELS[name]} of the {where} side", SETTINGS[name].help)
            self.boxes[name] = box
            for value in SETTINGS[name].choices:
                box.addItem(value, value)
            box.activated.connect(lambda: self.changed.emit())
            row.addLayout(under_its_name(_LABELS[name], box), 1)
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
        self._show(settings)
        self.changed.emit()

    def show_engine(
        self, config: EngineConfig, known: Checkpoint | None, proposed: Mapping[str, Any]
    ) -> None:
        """What is possible with the model that is loaded; `proposed`, until the user has chosen."""
        if known is not None:
            head = self.boxes[HEAD].currentData()
            weights = known.of_weights(head, config.dtype)
            describe_items(self.boxes[WEIGHTS], [(c.value, c.text, c.refusal) for c in weights])
            heads = known.of_head(self.boxes[WEIGHTS].currentData())
            describe_items(self.boxes[HEAD], [(c.value, c.text, c.refusal) for c in heads])
        if not self._is_touched:
            self._show(proposed)

    def show_model(self, config: EngineConfig) -> None:
        """Another model than the loaded one: nothing is known of its checkpoint, so the engine says
        what cannot be."""
        for name, box in self.boxes.items():
            titles = {"auto": "as stored"} if name == WEIGHTS else {}
            values = SETTINGS[name].choices
            describe_items(box, [(value, titles.get(value, value), "") for value in values])
            box.setCurrentIndex(max(0, box.findData(getattr(config, name))))
        self._is_touched = False

    def forget(self) -> None:
        """What the user has chosen: the next `show_engine` proposes again."""
        self._is_touched = False

    def _show(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            box = self.boxes[name]
            if box.findData(value) < 0:
                box.addItem(f"{value}", value)
            box.setCurrentIndex(box.findData(value))

    def _touch(self) -> None:
        self._is_touched = True


def as_loaded(config: EngineConfig) -> dict[str, Any]:
    """The precision in force."""
    return {name: getattr(config, name) for name in _LABELS if name in SETTINGS}


def another(config: EngineConfig, known: Checkpoint | None) -> dict[str, Any]:
    """The other of plain weights and int8; of a quantized checkpoint another output head."""
    if known is not None and known.method:
        head = "none" if config.quantization_head == "int8" else "int8"
        return {**as_loaded(config), HEAD: head}
    weights = "none" if config.quantization in ROUNDED else "int8"
    return {**as_loaded(config), WEIGHTS: weights}
