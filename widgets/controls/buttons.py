"""Icon buttons: plain, shown on hover, copy, jump to end."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QRect, QSize, Qt
from PySide6.QtGui import QGuiApplication, QPaintEvent
from PySide6.QtWidgets import QPushButton, QToolButton, QWidget

from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_4


class IconButton(QToolButton):
    """An icon with a tooltip that is also its accessible name."""

    def __init__(
        self, icon: str, text: str, pressed: Callable[[], object], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setIconSize(QSize(16, 16))
        self.setToolTip(text)
        self.setAccessibleName(text)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        set_icon(self, icon)
        self.clicked.connect(lambda: pressed())


class QuietButton(IconButton):
    """Drawn only while the pointer is over the widget that it belongs to, or it has the focus."""

    is_lit = False

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.is_lit or self.hasFocus():
            super().paintEvent(event)


class CopyButton(QuietButton):
    """Copies a text; a tick says so until the pointer leaves."""

    def __init__(self, text: str, read: Callable[[], str], parent: QWidget | None = None) -> None:
        super().__init__("copy", text, self._copy, parent)
        self.is_lit = True
        self._text = text
        self._read = read

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._read())
        set_icon(self, "check", "success")
        self.setToolTip("Copied")

    def leaveEvent(self, event: QEvent) -> None:
        set_icon(self, "copy")
        self.setToolTip(self._text)
        super().leaveEvent(event)


class JumpButton(QPushButton):
    """Floats above the end of the transcript while the user reads further up."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Newest", parent)
        self.setToolTip("Scroll to the end (End)")
        self.setAccessibleName("Scroll to the end")
        set_icon(self, "chevron-down")
        self.hide()

    def place(self, area: QRect) -> None:
        """At the lower right of `area`."""
        size = self.sizeHint()
        x = area.right() - size.width() - SPACE_4
        self.setGeometry(x, area.bottom() - size.height() - SPACE_1, size.width(), size.height())
