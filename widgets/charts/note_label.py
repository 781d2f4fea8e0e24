"""A note that gives way: it is there where there is room for all of it."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme import theme, ui_font


class NoteLabel(QWidget):
    """One line of small, muted text at the right; left out where it does not fit. The tool tip
    and the accessible name have it always."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = ""
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

    @property
    def fits(self) -> bool:
        """Whether the text is shown."""
        return self.width() >= self._text_width

    @property
    def _text_width(self) -> int:
        return QFontMetrics(ui_font("small")).horizontalAdvance(self._text)

    def sizeHint(self) -> QSize:
        return QSize(self._text_width, QFontMetrics(ui_font("small")).height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.fits:
            return
        painter = QPainter(self)
        painter.setFont(ui_font("small"))
        painter.setPen(theme().color("text_muted"))
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(self.rect(), flags, self._text)
        painter.end()
