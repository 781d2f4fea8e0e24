"""A line that stays until what it says is over, with an action where there is one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from widgets.elided_line import ElidedLine
from widgets.icons import icon_pixmap
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme_notifier

_ICONS = {
    "info": ("info", "text_muted"),
    "warning": ("warning", "warning"),
    "error": ("error", "danger"),
}

_ICON = 16
_MOST_LINES = 3
"""Of a notice that only informs, before it becomes one that is cut: a problem is told whole."""


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
        self._brief = ElidedLine()
        self._brief.hide()
        row.addWidget(self._label, 1)
        row.addWidget(self._brief, 1)
        row.addWidget(self._action, 0, Qt.AlignmentFlag.AlignVCenter)
        theme_notifier().changed.connect(self._draw)
        self.hide()
        self._draw()

    def say(
        self, text: str, action: str = "", callback: Callable[[], object] | None = None
    ) -> None:
        """Show `text`; with "" hide."""
        self._label.setText(text)
        self._brief.set_text(text)
        self._callback = callback
        self._action.setText(action)
        self._action.setVisible(bool(action and callback))
        self._fit()
        self.setVisible(bool(text))

    def text(self) -> str:
        return self._label.text()

    def is_brief(self) -> bool:
        """Whether it is one line, and all of it in the tooltip."""
        return self._label.isHidden()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def _fit(self) -> None:
        beside = 2 * SPACE_2 + SPACE_3 + _ICON
        if not self._action.isHidden():
            beside += SPACE_2 + self._action.sizeHint().width()
        height = self._label.heightForWidth(max(1, self.width() - beside))
        most = _MOST_LINES * self._label.fontMetrics().lineSpacing()
        is_brief = self._kind == "info" and height > most + SPACE_1
        self._label.setHidden(is_brief)
        self._brief.setHidden(not is_brief)

    def _pressed(self) -> None:
        if self._callback is not None:
            self._callback()

    def _draw(self) -> None:
        restyle(self, notice=self._kind)
        self._fit()
        name, color = _ICONS[self._kind]
        self._icon.setPixmap(icon_pixmap(name, color, _ICON, self.devicePixelRatioF()))
