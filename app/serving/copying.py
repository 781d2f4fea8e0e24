"""Buttons that copy, and say that they did."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

COPIED_MS = 1500


class CopyButton(QPushButton):
    """Copies what `text` gives at that moment."""

    def __init__(self, name: str, text: Callable[[], str], label: str = "Copy") -> None:
        super().__init__(label)
        self.setAccessibleName(name)
        self.setToolTip(name)
        self._text, self._label = text, label
        self._again = QTimer(self)
        self._again.setSingleShot(True)
        self._again.setInterval(COPIED_MS)
        self._again.timeout.connect(lambda: self.setText(label))
        self.clicked.connect(self.copy)

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setText("Copied")
        self._again.start()
