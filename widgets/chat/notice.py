"""A line that stays until what it says is over, with an action where there is one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from widgets.icons import icon_pixmap
from widgets.theme import SPACE_2, SPACE_3, restyle, theme_notifier

_ICONS = {
    "info": ("info", "text_muted"),
    "warning": ("warning", "warning"),
    "error": ("error", "danger"),
}


class Notice(QFrame):
    """kind: "info", "warning" or "error". Hidden while it has no text."""

    def __init__(self, kind: str = "info", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._kind = kind
        self._callback: Callable[[], object] | None = None
        self._icon, self._label, self._action = QLabel(), QLabel(), QPushButton()
        self._label.setWordWrap(True)
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._action.clicked.connect(self._pressed)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        row.setSpacing(SPACE_2)
        row.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self._label, 1)
        row.addWidget(self._action, 0, Qt.AlignmentFlag.AlignVCenter)
        theme_notifier().changed.connect(self._draw)
        self.hide()
        self._draw()

    def say(
        self, text: str, action: str = "", callback: Callable[[], object] | None = None
    ) -> None:
        """Show `text`; with "" hide."""
        self._label.setText(text)
        self._callback = callback
        self._action.setText(action)
        self._action.setVisible(bool(action and callback))
        self.setVisible(bool(text))

    def text(self) -> str:
        return self._label.text()

    def _pressed(self) -> None:
        if self._callback is not None:
            self._callback()

    def _draw(self) -> None:
        restyle(self, notice=self._kind)
        name, color = _ICONS[self._kind]
        self._icon.setPixmap(icon_pixmap(name, color, 16, self.devicePixelRatioF()))
