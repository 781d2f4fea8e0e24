"""What stands below the engine's settings: what happens, and the buttons for all of them."""

from __future__ import annotations

from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QMenu,
    QProgressBar,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from widgets.icons import set_icon
from widgets.key_words import set_key_tip
from widgets.theme import SPACE_2, SPACE_3


class SettingsFoot(QWidget):
    """Message, progress and Apply are hidden until there is something to say or to apply."""

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
        self.profiles.setToolTip("Named sets of settings: choose, save, delete; and the defaults")
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
    """A line between two parts."""
    made = QFrame()
    made.setProperty("line", True)
    return made


def _history_button(icon: str, name: str) -> QToolButton:
    button = QToolButton()
    set_icon(button, icon)
    button.setAccessibleName(name)
    return button
