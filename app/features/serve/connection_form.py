"""`ConnectionForm`: name, address, key, model, and the result of a test."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QComboBox, QLineEdit, QWidget

from app.clients.connection import Problem
from app.clients.target import Probe
from app.features.quantize.fields import Field
from app.features.serve.parts import StateLine, show_problems
from engine.units import duration_text
from widgets.controls.layouts import button, dressed, hbox, vbox, wrapped
from widgets.controls.lines import SecretLine
from widgets.live.figures import StateKind
from widgets.theme.theme import SPACE_3

FIRST_MODEL = "first model on the server"


class ConnectionForm(QWidget):
    """`edited`: a field changed."""

    edited = Signal()
    test_wanted = Signal()
    save_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.name = dressed(QLineEdit(), "Name")
        self.name.setPlaceholderText("e.g. H200 lab server")
        self.url = dressed(QLineEdit(), "Address")
        self.url.setPlaceholderText("http://host:8000")
        self.key = SecretLine("API key")
        self.model = dressed(QComboBox(), "Model", "Model name; click Test to list models")
        self.model.setEditable(True)
        self.model.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        self.model.setMinimumContentsLength(8)
        line = self.model.lineEdit()
        assert line is not None
        dressed(line, "Model").setPlaceholderText(FIRST_MODEL)
        self.result = StateLine()
        self.details = wrapped("small")
        self.test = button(
            "Test", self.test_wanted.emit, "Check server type, version, models and latency"
        )
        self.save = button(
            "Save", self.save_wanted.emit, "Save the connection and store its key in the keyring"
        )
        self.fields: dict[str, tuple[Field, QLineEdit]] = {
            "name": (Field("Name", self.name), self.name),
            "base_url": (Field("Address", self.url), self.url),
            "key": (Field("API key", self.key, self.key.reveal), self.key),
        }
        for _, line in self.fields.values():
            line.textEdited.connect(lambda _: self.edited.emit())
            line.returnPressed.connect(self.save_wanted)
        self.model.editTextChanged.connect(lambda _: self.edited.emit())
        vbox(
            *(field for field, _ in self.fields.values()), Field("Model", self.model),
            self.result, self.details, hbox(self.test, (self.save, 1)), of=self, spacing=SPACE_3,
        )  # fmt: skip
        self.say("", "idle")

    # What is written ---------------------------------------------------------------------------

    @property
    def values(self) -> tuple[str, str, str, str]:
        """Name, address, key, model."""
        return (self.name.text().strip(), self.url.text().strip(), self.key.text(),
                self.model.currentText().strip())  # fmt: skip

    def show_values(self, name: str, url: str, key: str, model: str) -> None:
        """Show without a signal."""
        with QSignalBlocker(self):
            self.name.setText(name)
            self.url.setText(url)
            self.key.setText(key)
            self.model.clear()
            self.model.setEditText(model)
        self.say("", "idle")
        self.show_problems(())

    def show_models(self, models: Sequence[str]) -> None:
        """Offer model names; keep the typed one."""
        written = self.model.currentText()
        with QSignalBlocker(self):
            self.model.clear()
            self.model.addItems(list(models))
            self.model.setEditText(written)

    def show_problems(self, problems: Sequence[Problem], key_note: str = "") -> None:
        """Show problems below their fields; `key_note`: a note about the key."""
        show_problems(self.fields, problems, key_note)

    # What came of asking -----------------------------------------------------------------------

    def say(self, text: str, kind: StateKind, details: str = "") -> None:
        self.result.say(text, kind)
        self.result.setVisible(bool(text))
        self.details.setText(details)
        self.details.setVisible(bool(details))

    def show_probe(self, probe: Probe) -> None:
        who = f"{probe.server_type.value} {probe.version}".rstrip()
        count = len(probe.models)
        models = ", ".join(probe.models[:3]) + (f" and {count - 3} more" if count > 3 else "")
        parts = [f"Models: {models or 'none loaded'}."]
        if probe.max_model_len:
            parts.append(f"Context length: {probe.max_model_len:,} tokens.")
        parts.append(
            "Server metrics available." if probe.has_metrics
            else "No server metrics: latencies are measured client-side."
        )  # fmt: skip
        self.say(f"{who}, {duration_text(probe.round_trip_s)} round trip", "busy", " ".join(parts))
        self.show_models(probe.models)
