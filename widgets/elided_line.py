"""A line of small text that gives way."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme import theme, theme_notifier, ui_font


class ElidedLine(QWidget):
    """One line of small text, cut where it ends; the tool tip has all of it."""

    def __init__(self, color: str = "text") -> None:
        super().__init__()
        self._text, self._color = "", color
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def text(self) -> str:
        return self._text

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.setToolTip(text)
            self.setAccessibleName(text)
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, QFontMetrics(ui_font("small")).height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = ui_font("small")
        painter.setFont(font)
        painter.setPen(theme().color(self._color))
        cut = QFontMetrics(font).elidedText(self._text, Qt.TextElideMode.ElideRight, self.width())
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignVCenter, cut)
        painter.end()
