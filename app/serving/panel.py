"""The form, and below it the button that starts and stops: kept in the settings when it changes."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from app.connections.key_desk import KeyDesk
from app.quantize.fields import wrapped
from app.serving.choice import ServingChoice
from app.serving.desk import KEY, ServingDesk, ServingState
from app.serving.form import ServingForm
from app.serving.scrolled import ScrolledForm
from widgets.icons import set_icon
from widgets.key_words import set_key_tip
from widgets.theme import SPACE_1, restyle

TOGGLE = "server.toggle"
BUTTONS = {
    ServingState.OFF: "Start server",
    ServingState.STARTING: "Starting…",
    ServingState.ON: "Stop server",
    ServingState.STOPPING: "Stop at once",
}
TIPS = {
    ServingState.OFF: "Serve this window's engine to other programs",
    ServingState.STARTING: "The server's libraries are being loaded",
    ServingState.ON: "Take no more calls; running replies may end for 5 s",
    ServingState.STOPPING: "Abort the replies that still run",
}


class ServingPanel(QWidget):
    """`chosen(ServingChoice)`: to be remembered. `renewed`: choice or key has changed."""

    chosen = Signal(object)
    renewed = Signal()

    def __init__(
        self, desk: ServingDesk, keys: KeyDesk, choice: ServingChoice, *, starts_itself: bool
    ) -> None:
        super().__init__()
        self._desk, self._keys, self._choice = desk, keys, choice
        self.form = ServingForm()
        self.form.show_choice(choice)
        self.form.at_start.setChecked(starts_itself)
        self.button = QPushButton()
        self.note = wrapped("small")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        column.addWidget(ScrolledForm(self.form, "Settings of the server"), 1)
        column.addWidget(self.note)
        column.addWidget(self.button)
        self.button.clicked.connect(self.toggle)
        self.form.changed.connect(self._on_form)
        self.form.key_edited.connect(lambda key: keys.put(KEY, key))
        keys.arrived.connect(self._on_key)
        keys.problem_changed.connect(self._renew)
        desk.changed.connect(self._renew)
        self._renew()

    @property
    def choice(self) -> ServingChoice:
        return self._choice

    @property
    def has_key(self) -> bool:
        return bool(self.form.key.text())

    @property
    def can_toggle(self) -> bool:
        return self.button.isEnabled()

    def toggle(self) -> None:
        """Start, or stop; while it stops, stop at once."""
        if self._desk.can_start:
            if not self._choice.problems(self.form.key.text()):
                self._keys.put(KEY, self.form.key.text())
                self._desk.start(self._choice)
        else:
            self._desk.stop()

    def take_port(self, port: int) -> None:
        """Serve at another port than the one that was in use."""
        self.form.port.setValue(port)
        self.toggle()

    def _on_form(self) -> None:
        if self.form.choice != self._choice:
            self._choice = self.form.choice
            self.chosen.emit(self._choice)
        self._renew()

    def _on_key(self, name: str) -> None:
        if name == KEY:
            self.form.show_key(self._keys.key(KEY))
            self._renew()

    def _renew(self) -> None:
        state, key = self._desk.state, self.form.key.text()
        problems = self._choice.problems(key)
        self.form.show_problems(problems, self._keys.problem if key else "")
        self.form.set_running(state is not ServingState.OFF)
        self.button.setText(BUTTONS[state])
        set_key_tip(self.button, TIPS[state], TOGGLE)
        is_off = state is ServingState.OFF
        set_icon(self.button, *(("play", "accent_text") if is_off else ("stop", "text")))
        restyle(self.button, kind="primary" if is_off else "")
        self.button.setEnabled(state is not ServingState.STARTING and not (is_off and problems))
        self.note.setText("" if is_off else "Stop the server to change where and how it serves.")
        self.note.setVisible(not is_off)
        self.renewed.emit()
