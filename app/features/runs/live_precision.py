"""Switches the precision of the open model, and shows the cost."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.features.models.precision import WEIGHTS
from app.features.tune.precision_rows import PrecisionGuide
from app.features.tune.settings_commands import SettingsCommands
from app.link.bridge import EngineBridge
from engine import messages
from engine.config import SETTINGS, Change
from engine.units import duration_text
from widgets.controls.combo import ElidedCombo, describe_items
from widgets.controls.layouts import dressed, hbox, label
from widgets.controls.lines import ElidedLine


class LivePrecision(QWidget):
    """Changes the weights at once; requests pause and resume. Hidden without a model."""

    def __init__(
        self, bridge: EngineBridge, guide: PrecisionGuide, commands: SettingsCommands
    ) -> None:
        super().__init__()
        self._bridge, self._guide, self._commands = bridge, guide, commands
        self.weights = dressed(
            ElidedCombo(), "Weights of the open model",
            "Change the precision of the open model now. Requests pause and resume.",
        )  # fmt: skip
        self.weights.setMinimumContentsLength(8)
        for value in SETTINGS[WEIGHTS].choices:
            self.weights.addItem(str(value), value)
        self.weights.activated.connect(self._on_chosen)
        self.note = ElidedLine("text_muted")
        title = label("Weights of the open model", "small")
        title.setBuddy(self.weights)
        hbox(title, self.weights, (self.note, 1), of=self)
        for changed in (guide.changed, bridge.state_changed, bridge.loaded, bridge.load_failed):
            changed.connect(self.refresh)
        bridge.lock_changed.connect(self.refresh)
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_failed)
        self.refresh()

    def refresh(self, *_: object) -> None:
        config, known = self._bridge.config, self._guide.checkpoint
        self.setVisible(config is not None and known is not None)
        if config is None or known is None:
            return
        choices = known.of_weights(config.quantization_head, config.dtype)
        describe_items(self.weights, [(c.value, c.text, c.refusal) for c in choices])
        self.weights.setCurrentIndex(max(0, self.weights.findData(config.quantization)))
        self.weights.setEnabled(self._commands.may_change)

    def _on_chosen(self) -> None:
        config, value = self._bridge.config, self.weights.currentData()
        if config is not None and value != config.quantization:
            wanted = config.replace(quantization=value)
            expected = self._guide.expected(wanted)
            self.note.set_text(f"Changing: {expected.words}." if expected else "Changing.")
            self._commands.change({WEIGHTS: value})

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if event.change is Change.RELOAD:
            self.note.set_text(f"Changed in {duration_text(event.seconds)}.")
        self.refresh()

    def _on_failed(self, event: messages.ReconfigureFailed) -> None:
        self.note.set_text(f"{event.error.cause} {event.error.remedy}".strip())
        self.refresh()
