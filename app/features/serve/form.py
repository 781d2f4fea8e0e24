"""`ServingForm`: address, port, key, limits of the server."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QLocale, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QWidget,
)

from app.features.quantize.fields import Field
from app.features.serve.parts import show_problems
from app.server.options import RANGES, Problem, ServingChoice, new_key
from widgets.controls.layouts import STRETCH, button, dressed, vbox
from widgets.controls.lines import SecretLine
from widgets.theme.theme import SPACE_2, SPACE_3, figure_font

COPIED_MS = 1500


class CopyButton(QPushButton):
    """Copies `text()` and shows that it did."""

    def __init__(self, name: str, text: Callable[[], str], label: str = "Copy") -> None:
        super().__init__(label)
        dressed(self, name, name)
        self._text = text
        self._again = QTimer(self, singleShot=True, interval=COPIED_MS)
        self._again.timeout.connect(lambda: self.setText(label))
        self.clicked.connect(self.copy)

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setText("Copied")
        self._again.start()


_NUMBERS = (
    ("max_queued", "Max waiting requests", "", "",
     "Queue limit, excluding running requests; excess requests are rejected with 429"),
    ("max_connections", "Max connections", "", "", "Excess connections are rejected with 503"),
    ("max_output_tokens", "Max output tokens", "", "context",
     "Larger max_tokens values are rejected with 400. “context”: the context length is the limit"),
    ("max_body_mib", "Max request body", " MiB", "", "Larger requests are rejected with 413"),
)  # fmt: skip


class ServingForm(QWidget):
    """`changed`: the choice or the key. `key_edited(key)`: store it."""

    changed = Signal()
    key_edited = Signal(str)
    at_start_toggled = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self._make_fields()
        self._arrange()
        self._connect()

    def _make_fields(self) -> None:
        self.address = dressed(
            QComboBox(), "Network access",
            "127.0.0.1, or all network interfaces (requires an API key)",
        )  # fmt: skip
        self.address.addItem("This machine only", False)
        self.address.addItem("All interfaces", True)
        self.port = _number("port", "Port", "", "")
        self.port.setGroupSeparatorShown(False)
        self.key = SecretLine("API key")
        self.copy_key = CopyButton("Copy the API key", lambda: self.key.text())
        self.generate = button(
            "New", self.make_key, "Generate a random key; the previous key becomes invalid"
        )
        self.model_name = dressed(QLineEdit(), "Served model name")
        self.model_name.setPlaceholderText("model folder name")
        self.origins = dressed(QLineEdit(), "Allowed origins (CORS)")
        self.origins.setPlaceholderText("none; e.g. http://localhost:3000")
        self.numbers = {
            name: _number(name, title, unit, special) for name, title, unit, special, _ in _NUMBERS
        }
        self.control = dressed(
            QCheckBox("Allow remote windows to change settings"),
            tip="Attached windows may change settings and unload the model. Off: view and chat "
            "only.",
        )  # fmt: skip
        self.at_start = dressed(
            QCheckBox("Start automatically"), tip="Start the server when Inferdeck starts"
        )

    def _arrange(self) -> None:
        where, limits = QGridLayout(), QGridLayout()
        top = Qt.AlignmentFlag.AlignTop
        where.addWidget(Field("Network access", self.address), 0, 0, top)
        where.addWidget(Field("Port", self.port), 0, 1, top)
        for place, (name, title, _, _, tip) in enumerate(_NUMBERS):
            limits.addWidget(Field(title, self.numbers[name], tip=tip), *divmod(place, 2))
        limits.setColumnStretch(1, 1)
        for grid in (where, limits):
            grid.setContentsMargins(0, 0, 0, 0)
            grid.setSpacing(SPACE_2)
            grid.setColumnStretch(0, 1)
        self.key_field = Field("API key", self.key, self.key.reveal, self.copy_key, self.generate)
        name_field = Field(
            "Served model name", self.model_name, tip="Model name in the API, for any loaded model"
        )
        origins_field = Field(
            "Allowed origins (CORS)", self.origins,
            tip="Comma-separated web origins; requests from other origins are rejected",
        )  # fmt: skip
        self.fields = {
            "key": (self.key_field, self.key), "origins": (origins_field, self.origins),
            "model_name": (name_field, self.model_name),
        }  # fmt: skip
        vbox(
            where, self.key_field, name_field, limits, origins_field, self.control, self.at_start,
            STRETCH, of=self, spacing=SPACE_3,
        )  # fmt: skip

    def _connect(self) -> None:
        self.address.currentIndexChanged.connect(lambda _: self.changed.emit())
        for number in (self.port, *self.numbers.values()):
            number.valueChanged.connect(lambda _: self.changed.emit())
        for line in (self.model_name, self.origins):
            line.editingFinished.connect(self.changed)
        self.key.editingFinished.connect(self._on_key)
        self.key.textEdited.connect(lambda _: self.changed.emit())
        self.control.toggled.connect(lambda _: self.changed.emit())
        self.at_start.toggled.connect(self.at_start_toggled)

    # What is chosen ----------------------------------------------------------------------------

    @property
    def choice(self) -> ServingChoice:
        numbers = {name: field.value() for name, field in self.numbers.items()}
        origins = [part.strip().rstrip("/") for part in self.origins.text().split(",")]
        return ServingChoice(
            is_public=bool(self.address.currentData()),
            port=self.port.value(),
            model_name=self.model_name.text().strip(),
            origins=tuple(part for part in origins if part),
            allows_control=self.control.isChecked(),
            **numbers,
        )

    def show_choice(self, choice: ServingChoice) -> None:
        """Show without a signal."""
        with QSignalBlocker(self):
            self.address.setCurrentIndex(int(choice.is_public))
            self.port.setValue(choice.port)
            self.control.setChecked(choice.allows_control)
            self.model_name.setText(choice.model_name)
            self.origins.setText(", ".join(choice.origins))
            for name, field in self.numbers.items():
                field.setValue(getattr(choice, name))

    def show_key(self, key: str) -> None:
        if key != self.key.text():
            self.key.setText(key)
        self.copy_key.setEnabled(bool(key))

    def make_key(self) -> None:
        self.show_key(new_key())
        self._on_key()

    def show_problems(self, problems: list[Problem], key_note: str) -> None:
        """Show problems below their fields. `key_note`: a note about the key."""
        show_problems(self.fields, problems, key_note)

    def set_running(self, is_running: bool) -> None:
        """Disable fields while the server runs."""
        fields = (self.address, self.port, self.model_name, self.origins, self.generate,
                  self.control, *self.numbers.values())  # fmt: skip
        for field in fields:
            field.setEnabled(not is_running)
        self.key.setReadOnly(is_running)

    def _on_key(self) -> None:
        self.copy_key.setEnabled(bool(self.key.text()))
        self.key_edited.emit(self.key.text())
        self.changed.emit()


def _number(name: str, title: str, unit: str, special: str) -> QSpinBox:
    field = QSpinBox()
    field.setRange(*RANGES[name])
    field.setLocale(QLocale.c())
    field.setGroupSeparatorShown(True)
    field.setKeyboardTracking(False)
    field.setFont(figure_font())
    field.setSuffix(unit)
    field.setSpecialValueText(special)
    field.setAccessibleName(title)
    return field
