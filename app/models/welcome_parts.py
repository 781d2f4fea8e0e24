"""What the first-run page is made of."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QVBoxLayout

from widgets.chat.buttons import CopyButton
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, mono_font


class AdviceBox(QFrame):
    """What could be better, and the command for it, ready to copy. Hidden without any."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("notice", "warning")
        self._text = plain_text("", "")
        self._command = plain_text("", "")
        self._command.setFont(mono_font("small"))
        self._command.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self._command, 1)
        row.addWidget(
            CopyButton("Copy the command", lambda: self.command),
            0, Qt.AlignmentFlag.AlignTop,
        )  # fmt: skip
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addWidget(self._text)
        column.addLayout(row)
        self.hide()

    @property
    def command(self) -> str:
        return self._command.text()

    def show_advice(self, text: str, command: str) -> None:
        self._text.setText(text)
        self._command.setText(command)
        self.setAccessibleName(f"{text} {command}")
        self.show()


class Way(QFrame):
    """One place to begin: what it is, and the button that leads there."""

    def __init__(
        self, title: str, text: str, button: str, do: Callable[[], object], kind: str
    ) -> None:
        super().__init__()
        self.setProperty("notice", "info")
        go = QPushButton(button)
        go.setProperty("kind", kind)
        go.setAccessibleDescription(f"{title}. {text}")
        go.setMinimumWidth(124)  # one column of buttons
        go.clicked.connect(lambda: do())
        words = QVBoxLayout()
        words.setSpacing(SPACE_1)
        words.addWidget(heading(title))
        words.addWidget(plain_text(text, "muted"))
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        row.setSpacing(SPACE_3)
        row.addLayout(words, 1)
        row.addWidget(go, 0, Qt.AlignmentFlag.AlignVCenter)


def heading(text: str) -> QLabel:
    return plain_text(text, "title")


def plain_text(text: str, role: str, *, wraps: bool = True) -> QLabel:
    label = QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setProperty("role", role)
    if wraps:
        label.setWordWrap(True)
        # with a least height of its own it would ask for that of a narrow one
        label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
