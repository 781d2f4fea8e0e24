"""`ModelButton`: the open model's name, size and precision; a press offers others."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QResizeEvent
from PySide6.QtWidgets import QToolButton, QWidget

from widgets.controls.text import set_key_tip
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, theme_notifier, ui_font

_ARROW = 12


class ModelButton(QToolButton):
    """As wide as its title, which is elided where there is less room."""

    def __init__(self, parent: QWidget, pressed: Callable[[], object], command: str) -> None:
        """`command`: the one that does the same, for the tooltip."""
        super().__init__(parent)
        self._title, self._whole, self._command = "", "", command
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow follows the text
        self.setIconSize(QSize(_ARROW, _ARROW))
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        set_icon(self, "chevron-down")
        self.clicked.connect(lambda: pressed())
        theme_notifier().changed.connect(self._take_font)
        self._take_font()

    def show_title(self, title: str, whole: str) -> None:
        """`whole`: for the tooltip, where the title is a part of it."""
        if (title, whole) != (self._title, self._whole):
            self._title, self._whole = title, whole
            self.setAccessibleName(f"Model: {whole}")
            set_key_tip(self, f"{whole}\nOpen another model", self._command)
            self._elide()

    def _take_font(self) -> None:
        self.setFont(ui_font("body", QFont.Weight.DemiBold))
        self._elide()

    @property
    def _beside(self) -> int:
        """Pixels beside the text."""
        return _ARROW + 2 * SPACE_1 + SPACE_2

    def width_of(self, title: str) -> int:
        """Pixels for a whole title."""
        advance = self.fontMetrics().horizontalAdvance(title)
        return advance + SPACE_1 + self._beside  # a text that just fits is elided

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        width = metrics.horizontalAdvance(self.text()) + self._beside
        return QSize(width, metrics.height() + 2 * SPACE_1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        room = self.width() - self._beside
        cut = self.fontMetrics().elidedText(self._title, Qt.TextElideMode.ElideRight, room)
        self.setText(cut)
