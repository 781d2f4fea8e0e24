"""`SettingList` and `SettingsFoot`: the setting rows in sections, and the buttons below."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QMenu,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.window.setting_specs import Machine, sections
from widgets.controls.setting_row import SettingRow
from widgets.controls.text import set_key_tip
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3


class SettingsFoot(QWidget):
    """Message, progress and Apply are hidden while empty."""

    def __init__(self, profiles: QMenu) -> None:
        super().__init__()
        self.message = QLabel()
        self.message.setProperty("role", "small")
        self.message.setWordWrap(True)
        self.message.hide()
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setAccessibleName("Applying settings")
        self.progress.hide()
        self.apply = QPushButton("Apply")
        self.apply.setProperty("kind", "primary")
        self.apply.hide()
        self.undo = _history_button("undo", "Undo setting")
        self.redo = _history_button("redo", "Redo setting")
        self.profiles = QPushButton("Profiles")
        self.profiles.setMenu(profiles)
        self.profiles.setToolTip("Saved settings: apply, save, delete, defaults")
        self.copy = QPushButton("Copy as…")
        set_key_tip(
            self.copy,
            "These settings as the command line of vLLM, SGLang or TensorRT-LLM",
            "tune.server_command",
        )
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE_2)
        buttons.addWidget(self.undo)
        buttons.addWidget(self.redo)
        buttons.addWidget(self.profiles, 1)
        buttons.addWidget(self.copy, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_3)
        layout.setSpacing(SPACE_2)
        for widget in (line(), self.message, self.progress, self.apply):
            layout.addWidget(widget)
        layout.addLayout(buttons)


def line() -> QFrame:
    """A separator."""
    made = QFrame()
    made.setProperty("line", True)
    return made


def _history_button(icon: str, name: str) -> QToolButton:
    button = QToolButton()
    set_icon(button, icon)
    button.setAccessibleName(name)
    return button


class SettingList(QScrollArea):
    """`rows`: by the name of the setting."""

    chosen = Signal(str, object)  # name, value
    refused = Signal(str, str)  # name, reason

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.setAccessibleName("Engine settings")
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the rows take the focus
        self.rows: dict[str, SettingRow] = {}
        content = QWidget()
        content.setProperty("bare", True)
        layout = QVBoxLayout(content)
        layout.setContentsMargins(SPACE_3, SPACE_1, SPACE_3, SPACE_3)
        layout.setSpacing(SPACE_3)
        for number, (title, specs) in enumerate(sections(machine).items()):
            if number:
                layout.addWidget(line())
            heading = QLabel(title)
            heading.setProperty("role", "small")
            layout.addWidget(heading)
            for spec in specs:
                row = self.rows[spec.name] = SettingRow(spec)
                row.value_changed.connect(self.chosen)
                row.refused.connect(self.refused)
                layout.addWidget(row)
        layout.addStretch(1)
        self.setProperty("bare", True)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWidget(content)
