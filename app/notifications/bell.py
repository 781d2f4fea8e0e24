"""The bell in the rail: how many notices nobody has seen, and the way to them."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QToolButton

from app.notifications.history import NoticeHistory
from widgets.icons import set_icon

NAME = "Notices"
MOST = 99


class Bell(QObject):
    """Keeps a button up to date. It rings in the colour of errors where one is among them."""

    def __init__(self, button: QToolButton, history: NoticeHistory) -> None:
        super().__init__(button)
        self._button, self._history = button, history
        history.changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        count = self._history.num_unread
        shown = f"{count}" if count <= MOST else f"{MOST}+"
        self._button.setText(f"{shown} new" if count else NAME)
        self._button.setAccessibleName(f"{NAME}, {shown} new" if count else NAME)
        color = "danger" if self._history.has_unread_error else "accent" if count else "text_muted"
        set_icon(self._button, "bell", color)
