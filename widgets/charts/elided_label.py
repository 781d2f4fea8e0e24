"""A label that gives way: it is cut with an ellipsis where the row is too narrow."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.fonts import SizeRole
from widgets.theme import theme, ui_font

_LEAST_SHARE = 0.8


class ElidedLabel(QWidget):
    """One line of muted text, right-aligned; where less than 80 % of it fits it is left out.

    The tool tip has the whole text."""

    def __init__(self, text: str = "", role: SizeRole = "small", parent: QWidget | None = None):
        super().__init__(parent)
        self._text = ""
        self._role: SizeRole = role
        self.set_text(text)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def text(self) -> str:
        return self._text

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.setAccessibleName(text)
            self.setToolTip(text)
            self.updateGeometry()
            self.update()

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(ui_font(self._role))
        return QSize(metrics.horizontalAdvance(self._text) + 1, metrics.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, QFontMetrics(ui_font(self._role)).height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = ui_font(self._role)
        painter.setFont(font)
        painter.setPen(theme().color("text_muted"))
        if self.width() >= self.sizeHint().width() * _LEAST_SHARE:
            metrics, flags = QFontMetrics(font), Qt.AlignmentFlag.AlignRight
            text = metrics.elidedText(self._text, Qt.TextElideMode.ElideRight, self.width())
            painter.drawText(self.rect(), flags | Qt.AlignmentFlag.AlignVCenter, text)
        painter.end()
