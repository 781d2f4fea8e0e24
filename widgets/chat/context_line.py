"""`ContextLine`: how much of the context is used, in as many words as there is room for."""

from __future__ import annotations

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy

from widgets.theme import figure_font


class ContextLine(QLabel):
    """A line, or the short one, or nothing where there is no room: half a number misleads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = ("", "")
        self.setProperty("role", "small")
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def say(self, text: str, short: str) -> None:
        self.lines = (text, short)
        self.setToolTip(text)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        advance = self.fontMetrics().horizontalAdvance
        self.setText(next((line for line in self.lines if advance(line) <= self.width()), ""))
