"""A line for a key or a password: hidden, and shown while a button is down."""

from __future__ import annotations

from PySide6.QtWidgets import QLineEdit, QPushButton

from widgets.fonts import mono_font


class SecretLine(QLineEdit):
    """`reveal` is the button, for whoever lays out the form. `name`: what the line is called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setEchoMode(QLineEdit.EchoMode.Password)
        self.setFont(mono_font())
        self.setPlaceholderText("none")
        self.setAccessibleName(name)
        self.reveal = QPushButton("Show")
        self.reveal.setCheckable(True)
        self.reveal.setToolTip("Show the key as it is")
        self.reveal.toggled.connect(self._reveal)

    def _reveal(self, is_shown: bool) -> None:
        self.reveal.setText("Hide" if is_shown else "Show")
        echo = QLineEdit.EchoMode
        self.setEchoMode(echo.Normal if is_shown else echo.Password)
