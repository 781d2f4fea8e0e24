"""What stands on a side: model, settings, drafts, precision and sampling.

Left · Starter model · fp32                   [greedy v]
Model               Settings            Drafts
[loaded model  v]   [as loaded     v]   [as loaded     v]
Weights             Output head         KV cache
[as stored     v]   [32 bits       v]   [auto          v]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QLabel, QVBoxLayout

from app.chat.sampling import built_in_presets
from app.compare.boxes import named_box, under_its_name
from app.compare.choice import PrecisionChoice
from app.compare.record import GREEDY
from app.compare.way import GREEDY as GREEDY_PARAMS
from app.compare.way import Setup
from app.precision.choices import Checkpoint
from app.profiles import Profile
from app.settings_store import RecentModel
from engine.config import SETTINGS, EngineConfig
from engine.sampling_params import SamplingParams
from widgets.elided_combo import ElidedCombo
from widgets.elided_line import ElidedLine
from widgets.theme import SPACE_1, SPACE_2, SPACE_3

METHOD = "speculative_method"
SAME_MODEL, AS_LOADED = "loaded model", "as loaded"


class SamplingChoice(ElidedCombo):
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


class SideChoice(QFrame):
    """A side as the user has it. `changed`: anything of it."""

    changed = Signal()

    def __init__(self, where: str) -> None:
        """`where`: "left" or "right"."""
        super().__init__()
        self.setProperty("panel", True)
        self._loaded: EngineConfig | None = None
        self.what = ElidedLine("text_muted")
        self.what.setAccessibleName(f"What stands on the {where}")
        self.sampling = SamplingChoice(where)
        self.model = named_box(
            f"Model of the {where} side", "Another model, or the one that is loaded"
        )
        self.profile = named_box(
            f"Settings of the {where} side", "The engine settings as loaded, or those of a profile"
        )
        self.drafts = named_box(f"Drafts of the {where} side", SETTINGS[METHOD].help)
        for text, value in ((AS_LOADED, None), ("no drafts", "off"), ("n-gram lookup", "ngram")):
            self.drafts.addItem(text, value)
        self.precision = PrecisionChoice(where)
        self._arrange(where)
        self.model.activated.connect(self._take_precision)
        self.profile.activated.connect(self._take_precision)
        for box in (self.drafts, self.sampling):
            box.activated.connect(lambda: self.changed.emit())
        self.precision.changed.connect(self.changed)

    def _arrange(self, where: str) -> None:
        title = QLabel(where.capitalize())
        title.setProperty("role", "title")
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(title)
        head.addWidget(self.what, 1)
        head.addWidget(self.sampling)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        names = (("Model", self.model), ("Settings", self.profile), ("Drafts", self.drafts))
        for name, box in names:
            row.addLayout(under_its_name(name, box), 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addLayout(head)
        column.addLayout(row)
        column.addWidget(self.precision)

    def offer(self, models: Sequence[RecentModel], profiles: Sequence[Profile]) -> None:
        """What can be chosen; what was chosen stays where it still can."""
        known = [(SAME_MODEL, None), *((m.title, m) for m in models)]
        _fill(self.model, known, lambda a, b: bool(a and b and a.is_same(b)))
        named = [(AS_LOADED, None), *((p.name, p) for p in profiles)]
        _fill(self.profile, named, lambda a, b: bool(a and b and a.name == b.name))

    def show_engine(
        self, config: EngineConfig, known: Checkpoint | None, proposed: Mapping[str, Any]
    ) -> None:
        """What is loaded: `proposed` is its precision here until the user chooses another."""
        self._loaded = config
        if self.chosen_model is None:
            self.precision.show_engine(config, known, proposed)

    def choose(self, model: RecentModel | None, settings: Mapping[str, Any]) -> None:
        """`model`, one that was offered (None: the one that is loaded), at the precision that
        `settings` name."""
        offered = [self.model.itemData(place) for place in range(self.model.count())]
        same = [bool(model and other and model.is_same(other)) for other in offered]
        self.model.setCurrentIndex(same.index(True) if True in same else 0)
        self.profile.setCurrentIndex(0)
        self._take_precision()
        self.precision.choose({n: settings[n] for n in self.precision.boxes if n in settings})

    def setup(self, seed: int) -> Setup:
        """What is chosen, and how it samples from `seed`."""
        model, words = self.chosen_model, self.precision.text
        name = words if model is None else f"{model.title} · {words}"
        settings = {**self._own_settings, **self.precision.settings}
        return Setup(settings, name, model, self.sampling.params(seed), self.sampling.name)

    @property
    def chosen_model(self) -> RecentModel | None:
        """None: the one that is loaded."""
        model: RecentModel | None = self.model.currentData()
        return model

    @property
    def _own_settings(self) -> dict[str, Any]:
        """Of the profile and the drafts."""
        profile: Profile | None = self.profile.currentData()
        found = dict(profile.settings) if profile is not None else {}
        if self.drafts.currentData() is not None:
            found[METHOD] = self.drafts.currentData()
        return found

    def _take_precision(self) -> None:
        """Precisions are those of the model, or of the profile."""
        model, own = self.chosen_model, self._own_settings
        config = model.config() if model is not None else self._loaded
        if model is not None:
            self.precision.show_model(model.config())
        else:
            self.precision.forget()
        if self.profile.currentData() is not None and config is not None:
            boxes = self.precision.boxes
            self.precision.choose({name: own.get(name, getattr(config, name)) for name in boxes})
        self.changed.emit()


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
