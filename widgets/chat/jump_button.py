"""The way back to the end of a transcript."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtWidgets import QPushButton, QWidget

from widgets.icons import set_icon
from widgets.theme import SPACE_1, SPACE_4


class JumpButton(QPushButton):
    """Floats above the end of the transcript while the user reads further up."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Newest", parent)
        self.setToolTip("Jump to the newest text (End)")
        self.setAccessibleName("Jump to the newest text")
        set_icon(self, "chevron-down")
        self.hide()

    def place(self, area: QRect) -> None:
        """At the lower right of `area`."""
        size = self.sizeHint()
        x = area.right() - size.width() - SPACE_4
        self.setGeometry(x, area.bottom() - size.height() - SPACE_1, size.width(), size.height())
