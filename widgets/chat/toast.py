"""A short message over the page that goes by itself, with a way back."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from widgets.chat.buttons import IconButton
from widgets.theme import SPACE_1, SPACE_3, SPACE_4

SHOWN_MS = 10_000


class Toast(QFrame):
    """`show_message` shows one message; the one before it is over, and its `expired` is called.

    `expired` is called once, when the message goes without its action having been taken. Alt and
    the first letter of the action take it, wherever the keyboard is.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("notice", "info")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._label, self._action = QLabel(), QPushButton()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._action.setProperty("kind", "link")
        self._action.clicked.connect(self._act)
        close = IconButton("close", "Close", self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, SPACE_1, SPACE_1, SPACE_1)
        row.setSpacing(SPACE_3)
        for widget in (self._label, self._action, close):
            row.addWidget(widget)
        self._callback: Callable[[], object] | None = None
        self._expired: Callable[[], object] | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.dismiss)
        parent.installEventFilter(self)
        self.hide()

    def show_message(
        self,
        text: str,
        action: str = "",
        callback: Callable[[], object] | None = None,
        expired: Callable[[], object] | None = None,
        shown_ms: int = SHOWN_MS,
    ) -> None:
        self.dismiss()
        self._label.setText(text)
        self._action.setText(f"&{action}" if action else "")
        self._action.setToolTip(f"{action} (Alt+{action[:1]})" if action else "")
        self._action.setAccessibleName(action)
        self._action.setVisible(bool(action))
        self._callback, self._expired = callback, expired
        self.show()
        self.raise_()
        self._place()
        self._timer.start(shown_ms)

    def text(self) -> str:
        return self._label.text() if not self.isHidden() else ""

    def dismiss(self) -> None:
        """End the message that is shown."""
        self._timer.stop()
        self.hide()
        expired, self._expired, self._callback = self._expired, None, None
        if expired is not None:
            expired()

    def act(self) -> None:
        """As if the action were pressed."""
        self._act()

    def _act(self) -> None:
        callback, self._expired = self._callback, None
        self.dismiss()
        if callback is not None:
            callback()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and not self.isHidden():
            self._place()
        return super().eventFilter(watched, event)

    def _place(self) -> None:
        self.adjustSize()
        parent = self.parentWidget()
        if parent is None:
            return
        area = parent.rect()
        self.move((area.width() - self.width()) // 2, area.height() - self.height() - SPACE_4)
