"""What stands on the right besides its precision, and how each side samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QWidget

from app.chat.sampling import built_in_presets
from app.compare.record import GREEDY
from app.compare.way import GREEDY as GREEDY_PARAMS
from app.profiles import Profile
from app.settings_store import RecentModel
from engine.config import SETTINGS
from engine.sampling_params import SamplingParams
from widgets.theme import SPACE_2

METHOD = "speculative_method"
SAME_MODEL, AS_LOADED = "loaded model", "as loaded"


class SamplingChoice(QComboBox):
    """Greedy, or one of the presets of the chat."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.setAccessibleName(f"Sampling of the {where} side")
        self.setToolTip("How tokens are chosen; both sides draw from the same seed")
        self.addItem(GREEDY, GREEDY_PARAMS)
        for preset in built_in_presets():
            self.addItem(preset.name, preset.params)

    @property
    def name(self) -> str:
        return self.currentText()

    def params(self, seed: int) -> SamplingParams:
        return dataclasses.replace(self.currentData(), seed=seed)


class RightChoice(QWidget):
    """Model, saved settings and drafts of the right side. `changed`; `model_changed`: another
    model, or another profile, of which precisions follow."""

    changed = Signal()
    model_changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.model = _box("Model of the right side", "Another model, or the one that is loaded")
        self.profile = _box(
            "Settings of the right side", "The engine settings as loaded, or those of a profile"
        )
        self.drafts = _box("Drafts of the right side", SETTINGS[METHOD].help)
        for text, value in ((AS_LOADED, None), ("no drafts", "off"), ("n-gram lookup", "ngram")):
            self.drafts.addItem(text, value)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        names = (("Model", self.model), ("Settings", self.profile), ("Drafts", self.drafts))
        for name, box in names:
            row.addWidget(QLabel(name))
            row.addWidget(box)
        row.addStretch(1)
        self.model.activated.connect(lambda: self.model_changed.emit())
        self.profile.activated.connect(lambda: self.model_changed.emit())
        self.drafts.activated.connect(lambda: self.changed.emit())

    def offer(self, models: Sequence[RecentModel], profiles: Sequence[Profile]) -> None:
        """What can be chosen; what was chosen stays where it still can."""
        known = [(SAME_MODEL, None), *((m.title, m) for m in models)]
        _fill(self.model, known, lambda a, b: bool(a and b and a.is_same(b)))
        named = [(AS_LOADED, None), *((p.name, p) for p in profiles)]
        _fill(self.profile, named, lambda a, b: bool(a and b and a.name == b.name))

    @property
    def chosen_model(self) -> RecentModel | None:
        """None: the one that is loaded."""
        return self.model.currentData()

    @property
    def settings(self) -> dict[str, Any]:
        """Of the profile and the drafts."""
        profile: Profile | None = self.profile.currentData()
        found = dict(profile.settings) if profile is not None else {}
        if self.drafts.currentData() is not None:
            found[METHOD] = self.drafts.currentData()
        return found


def _box(name: str, tip: str) -> QComboBox:
    box = QComboBox()
    box.setAccessibleName(name)
    box.setToolTip(tip)
    box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    box.setMinimumContentsLength(12)
    return box


def _fill(box: QComboBox, entries: Sequence[tuple[str, Any]], same: Any) -> None:
    before = box.currentData()
    if [box.itemText(i) for i in range(box.count())] == [text for text, _ in entries]:
        return
    with QSignalBlocker(box):
        box.clear()
        for text, value in entries:
            box.addItem(text, value)
            if same(before, value):
                box.setCurrentIndex(box.count() - 1)
