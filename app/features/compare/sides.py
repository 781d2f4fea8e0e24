"""`SideChoice`: model, settings, speculation, precision and sampling of one side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QObject, QSignalBlocker, Signal
from PySide6.QtWidgets import QComboBox, QFrame, QVBoxLayout, QWidget

from app.features.chat.sampling import built_in_presets
from app.features.compare.placement import GREEDY as GREEDY_PARAMS
from app.features.compare.placement import Setup
from app.features.compare.record import GREEDY
from app.features.models.precision import HEAD, ROUNDED, WEIGHTS, Checkpoint
from app.storage.profiles import Profile
from app.window.setting_specs import help_of
from app.window.settings_store import RecentModel
from engine.config import SETTINGS, EngineConfig
from engine.units import precision_name
from widgets.controls.combo import ElidedCombo, describe_items
from widgets.controls.layouts import dressed, hbox, label, vbox
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

_LETTERS = 8


def named_box(name: str, tip: str) -> QComboBox:
    """A combo box with accessible name `name`."""
    box = dressed(ElidedCombo(), name, tip)
    box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    box.setMinimumContentsLength(_LETTERS)
    return box


def labelled(name: str, box: QComboBox) -> QVBoxLayout:
    """`box` below its label."""
    title = label(name, "small")
    title.setBuddy(box)
    return vbox(title, box, spacing=1)


KV = "kv_cache_dtype"
_LABELS = {WEIGHTS: "Weights", HEAD: "LM head", KV: "KV cache"}


class PrecisionChoice(QObject):
    """Combo boxes for weights, output head and KV cache. `changed`: another precision was
    chosen."""

    changed = Signal()

    def __init__(self, where: str) -> None:
        """`where`: "left" or "right"."""
        super().__init__()
        self.boxes: dict[str, QComboBox] = {}
        self.fields: dict[str, QVBoxLayout] = {}  # to arrange
        for name in (name for name in _LABELS if name in SETTINGS):
            box = named_box(f"{_LABELS[name]} ({where} side)", help_of(SETTINGS[name]))
            self.boxes[name] = box
            for value in SETTINGS[name].choices:
                box.addItem(precision_name(value), value)
            box.activated.connect(lambda: self.changed.emit())
            self.fields[name] = labelled(_LABELS[name], box)
        self.is_touched = False  # the user chose here
        self.changed.connect(self._touch)

    @property
    def settings(self) -> dict[str, Any]:
        """The engine settings that are chosen."""
        return {name: box.currentData() for name, box in self.boxes.items()}

    @property
    def text(self) -> str:
        """ "int8 weights · KV fp8"."""
        parts = [self.boxes[WEIGHTS].currentText().partition(" · ")[0] + " weights"]
        if self.boxes[HEAD].currentData() != SETTINGS[HEAD].default:
            parts.append(f"{precision_name(self.boxes[HEAD].currentData())} head")
        if KV in self.boxes and self.boxes[KV].currentData() != SETTINGS[KV].default:
            parts.append(f"KV {self.boxes[KV].currentText()}")
        return " · ".join(parts)

    def choose(self, settings: Mapping[str, Any]) -> None:
        self._show(settings)
        self.changed.emit()

    def show_engine(
        self, config: EngineConfig, known: Checkpoint | None, proposed: Mapping[str, Any]
    ) -> None:
        """Offer the precisions of the loaded model; select `proposed` until the user chooses."""
        if known is not None:
            head = self.boxes[HEAD].currentData()
            weights = known.of_weights(head, config.dtype)
            describe_items(self.boxes[WEIGHTS], [(c.value, c.text, c.refusal) for c in weights])
            heads = known.of_head(self.boxes[WEIGHTS].currentData())
            describe_items(self.boxes[HEAD], [(c.value, c.text, c.refusal) for c in heads])
        if not self.is_touched:
            self._show(proposed)

    def show_model(self, config: EngineConfig) -> None:
        """Offer every precision: the checkpoint of a model that is not loaded was not read. The
        engine refuses what it cannot load."""
        for name, box in self.boxes.items():
            values = SETTINGS[name].choices
            describe_items(box, [(v, precision_name(v), "") for v in values])
            box.setCurrentIndex(max(0, box.findData(getattr(config, name))))
        self.is_touched = False

    def _touch(self) -> None:
        self.is_touched = True

    def _show(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            box = self.boxes[name]
            if box.findData(value) < 0:
                box.addItem(precision_name(f"{value}"), value)
            box.setCurrentIndex(box.findData(value))


def as_loaded(config: EngineConfig) -> dict[str, Any]:
    """The current precision of the engine."""
    return {name: getattr(config, name) for name in _LABELS if name in SETTINGS}


def another(config: EngineConfig, known: Checkpoint | None) -> dict[str, Any]:
    """A different precision: INT8 or unquantized weights; for a quantized checkpoint another output
    head."""
    if known is not None and known.method:
        head = "none" if config.quantization_head == "int8" else "int8"
        return {**as_loaded(config), HEAD: head}
    weights = "none" if config.quantization in ROUNDED else "int8"
    return {**as_loaded(config), WEIGHTS: weights}


METHOD = "speculative_method"
SAME_MODEL, AS_LOADED = "Loaded model", "Current settings"


class SideChoice(QFrame):
    """All choices of one side. `changed`: any of them."""

    changed = Signal()

    def __init__(self, where: str) -> None:
        """`where`: "left" or "right"."""
        super().__init__()
        self.setProperty("panel", True)
        self._loaded: EngineConfig | None = None
        self.what = dressed(ElidedLine("text_muted"), f"{where.capitalize()} side")
        tip = "Sampling preset. Both sides use the same seed"
        self.sampling = dressed(ElidedCombo(), f"Sampling ({where} side)", tip)
        self.sampling.addItem(GREEDY, GREEDY_PARAMS)
        for preset in built_in_presets():
            self.sampling.addItem(preset.name, preset.params)
        self.model = named_box(f"Model ({where} side)", "Loaded model or another installed model")
        tip = "Current engine settings or a profile"
        self.profile = named_box(f"Settings ({where} side)", tip)
        self.speculation = named_box(f"Speculation ({where} side)", help_of(SETTINGS[METHOD]))
        for text, value in ((AS_LOADED, None), ("Off", "off"), ("N-gram lookup", "ngram")):
            self.speculation.addItem(text, value)
        self.precision = PrecisionChoice(where)
        self._arrange(where)
        self.model.activated.connect(self._take_precision)
        self.profile.activated.connect(self._take_precision)
        for box in (self.speculation, self.sampling):
            box.activated.connect(lambda: self.changed.emit())
        self.precision.changed.connect(self.changed)

    def _arrange(self, where: str) -> None:
        """The model and its weights; the rest is folded."""
        head = hbox(label(where.capitalize(), "title"), (self.what, 1))
        fields = self.precision.fields
        first = hbox((labelled("Model", self.model), 1), (fields.pop(WEIGHTS), 1))
        self.more = QWidget()
        precise = [*fields.values(), labelled("Sampling", self.sampling)]
        rest = [labelled("Settings", self.profile), labelled("Speculation", self.speculation)]
        rows = (hbox(*((field, 1) for field in row)) for row in (precise, rest))
        vbox(*rows, of=self.more, spacing=SPACE_1)
        self.more.hide()
        margins = (SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        vbox(head, first, self.more, of=self, spacing=SPACE_1, margins=margins)

    def offer(self, models: Sequence[RecentModel], profiles: Sequence[Profile]) -> None:
        """Offer these; keep the choice if it is still offered."""
        known = [(SAME_MODEL, None), *((m.title, m) for m in models)]
        _fill(self.model, known, lambda a, b: bool(a and b and a.is_same(b)))
        named = [(AS_LOADED, None), *((p.name, p) for p in profiles)]
        _fill(self.profile, named, lambda a, b: bool(a and b and a.name == b.name))

    def show_engine(
        self, config: EngineConfig, known: Checkpoint | None, proposed: Mapping[str, Any]
    ) -> None:
        """Show the loaded engine; `proposed` is selected until the user chooses."""
        self._loaded = config
        if self.chosen_model is None:
            self.precision.show_engine(config, known, proposed)

    def choose(self, model: RecentModel | None, settings: Mapping[str, Any]) -> None:
        """Choose an offered `model` (None: the loaded one) at the precision in `settings`."""
        offered = [self.model.itemData(place) for place in range(self.model.count())]
        same = [bool(model and other and model.is_same(other)) for other in offered]
        self.model.setCurrentIndex(same.index(True) if True in same else 0)
        self.profile.setCurrentIndex(0)
        self._take_precision()
        self.precision.choose({n: settings[n] for n in self.precision.boxes if n in settings})

    def setup(self, seed: int) -> Setup:
        """The side as chosen, with `seed`."""
        model, precision = self.chosen_model, self.precision.text
        name = precision if model is None else f"{model.title} · {precision}"
        settings = {**self._own_settings, **self.precision.settings}
        sampling = dataclasses.replace(self.sampling.currentData(), seed=seed)
        return Setup(settings, name, model, sampling, self.sampling.currentText())

    @property
    def chosen_model(self) -> RecentModel | None:
        """The chosen model; None: the loaded one."""
        model: RecentModel | None = self.model.currentData()
        return model

    @property
    def _own_settings(self) -> dict[str, Any]:
        """Settings of the chosen profile and speculation."""
        profile: Profile | None = self.profile.currentData()
        found = dict(profile.settings) if profile is not None else {}
        if self.speculation.currentData() is not None:
            found[METHOD] = self.speculation.currentData()
        return found

    def _take_precision(self) -> None:
        """Select the precision of the model or the profile."""
        model, own = self.chosen_model, self._own_settings
        config = model.config() if model is not None else self._loaded
        if model is not None:
            self.precision.show_model(model.config())
        else:
            self.precision.is_touched = False  # the next `show_engine` proposes again
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
