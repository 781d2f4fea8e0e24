"""A line of figures in groups, of which those at the end give way where there is no room."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy

from widgets.theme import figure_font

BETWEEN = "    "
_LEAST_WIDTH = 60


class FiguresLine(QLabel):
    """As many groups as there is room for, from the left; the first is cut where it alone is too
    long. It can be selected and copied."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""
        self.setProperty("role", "small")
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setMinimumWidth(_LEAST_WIDTH)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)

    def show_line(self, line: str) -> None:
        """`line`: the groups, BETWEEN them."""
        if line != self._line:
            self._line = line
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def _fit(self) -> None:
        parts, metrics = self._line.split(BETWEEN), QFontMetrics(self.font())
        width = max(self.width(), _LEAST_WIDTH)
        while len(parts) > 1 and metrics.horizontalAdvance(BETWEEN.join(parts)) > width:
            parts.pop()
        text = metrics.elidedText(BETWEEN.join(parts), Qt.TextElideMode.ElideRight, width)
        if text != self.text():
            self.setText(text)
