"""The system prompt of a conversation."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QWidget

from widgets.chat.popover import Popover
from widgets.theme import SPACE_2


class PromptPopover(Popover):
    """`changed(text)` when it is closed with another text."""

    changed = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        title = QLabel("System prompt of this conversation")
        title.setProperty("role", "title")
        help_ = QLabel("What the model is told before the first message. Used from the next reply.")
        help_.setProperty("role", "small")
        self.input = QPlainTextEdit()
        self.input.setPlaceholderText("For example: Answer in one sentence, with numbers.")
        self.input.setAccessibleName("System prompt")
        self.input.setTabChangesFocus(True)
        self.input.setFixedSize(440, 160)
        self.column.setSpacing(SPACE_2)
        for widget in (title, self.input, help_):
            self.column.addWidget(widget)
        self._before = ""

    def set_text(self, text: str) -> None:
        self._before = text
        with QSignalBlocker(self.input):
            self.input.setPlainText(text)

    def first_field(self) -> QWidget:
        return self.input

    def closed(self) -> None:
        text = self.input.toPlainText()
        if text != self._before:
            self._before = text
            self.changed.emit(text)
