"""`ConnectionForm`: name, address, key, model, and the result of a test."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.clients.connection import Problem
from app.clients.target import Probe
from app.features.quantize.fields import Field, wrapped
from app.features.serve.parts import StateLine
from widgets.controls.lines import SecretLine
from widgets.live.figures import StateKind
from widgets.theme.theme import SPACE_2, SPACE_3, restyle

FIRST_MODEL = "server's first model"


class ConnectionForm(QWidget):
    """`edited`: a field changed."""

    edited = Signal()
    test_wanted = Signal()
    save_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.name = QLineEdit()
        self.name.setPlaceholderText("e.g. lab, H200")
        self.name.setAccessibleName("Name")
        self.url = QLineEdit()
        self.url.setPlaceholderText("http://host:8000")
        self.url.setAccessibleName("Address")
        self.key = SecretLine("API key")
        self.reveal = self.key.reveal
        self.model = QComboBox()
        self.model.setEditable(True)
        self.model.setAccessibleName("Model")
        self.model.setToolTip("Model to request; Test lists the names")
        self.model.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        self.model.setMinimumContentsLength(8)
        line = self.model.lineEdit()
        assert line is not None
        line.setPlaceholderText(FIRST_MODEL)
        line.setAccessibleName("Model")
        self.result = StateLine()
        self.details = wrapped("small")
        self.test = QPushButton("Test")
        self.test.setToolTip("Check server type, version, models and latency")
        self.save = QPushButton("Save")
        self.save.setToolTip("Save the connection; the key is stored in the keyring")
        self._arrange()
        self.name.textEdited.connect(self._on_edited)
        self.url.textEdited.connect(self._on_edited)
        self.key.textEdited.connect(self._on_edited)
        self.model.editTextChanged.connect(self._on_edited)
        for field in (self.name, self.url, self.key):
            field.returnPressed.connect(self.save_wanted)
        self.test.clicked.connect(self.test_wanted)
        self.save.clicked.connect(self.save_wanted)

    def _arrange(self) -> None:
        self.fields = {
            "name": (Field("Name", self.name), self.name),
            "base_url": (Field("Address", self.url), self.url),
            "key": (Field("API key", self.key, self.reveal), self.key),
        }
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE_2)
        buttons.addWidget(self.test)
        buttons.addWidget(self.save, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_3)
        for field, _ in self.fields.values():
            column.addWidget(field)
        column.addWidget(Field("Model", self.model))
        column.addWidget(self.result)
        column.addWidget(self.details)
        column.addLayout(buttons)
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

    def show_key(self, key: str) -> None:
        self.key.setText(key)

    def show_models(self, models: Sequence[str]) -> None:
        """Offer model names; keep the typed one."""
        written = self.model.currentText()
        with QSignalBlocker(self):
            self.model.clear()
            self.model.addItems(list(models))
            self.model.setEditText(written)

    def show_problems(self, problems: Sequence[Problem], key_note: str = "") -> None:
        """Show problems below their fields; `key_note`: a note about the key."""
        said = {problem.field: problem.text for problem in problems}
        for name, (field, line) in self.fields.items():
            text = said.get(name, "")
            if bool(line.property("invalid")) != bool(text):
                restyle(line, invalid=bool(text))
            if text:
                field.say(text, "error")
            else:
                field.say(key_note if name == "key" else "")

    # What came of asking -----------------------------------------------------------------------

    def say(self, text: str, kind: StateKind, details: str = "") -> None:
        self.result.say(text, kind)
        self.result.setVisible(bool(text))
        self.details.setText(details)
        self.details.setVisible(bool(details))

    def show_probe(self, probe: Probe) -> None:
        """Who answered."""
        who = f"{probe.dialect.value} {probe.version}".rstrip()
        count = len(probe.models)
        models = ", ".join(probe.models[:3]) + (f" and {count - 3} more" if count > 3 else "")
        parts = [f"Models: {models or 'none now'}."]
        if probe.max_model_len:
            parts.append(f"Context: {probe.max_model_len:,} tokens.")
        parts.append(
            "Its metrics can be read." if probe.has_metrics
            else "It shows no metrics: latencies are measured as the client."
        )  # fmt: skip
        self.say(f"{who}, {1e3 * probe.round_trip_s:,.1f} ms round trip", "busy", " ".join(parts))
        self.show_models(probe.models)

    def _on_edited(self, text: str = "") -> None:
        self.edited.emit()
