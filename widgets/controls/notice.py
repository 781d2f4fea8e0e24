"""Notices that stay until resolved, and toasts with an action."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QWidget

from widgets.controls.buttons import IconButton
from widgets.controls.layouts import Label, hbox
from widgets.controls.lines import ElidedLine
from widgets.theme.icons import icon_pixmap
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, restyle, theme_notifier

ICONS = {
    "info": ("info", "text_muted"),
    "warning": ("warning", "warning"),
    "error": ("error", "danger"),
}
"""Icon and colour of each kind."""

_ICON = 16
_MOST_LINES = 3
"""Characters above which an info notice is elided; problems are shown in full."""


class Notice(QFrame):
    """kind: "info", "warning" or "error". Hidden while it has no text."""

    def __init__(self, kind: str = "info", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._kind = kind
        self._callback: Callable[[], object] = lambda: None
        self._icon, self._label, self._action = QLabel(), Label(), QPushButton()
        self._label.setWordWrap(True)
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._action.clicked.connect(lambda: self._callback())
        self._brief = ElidedLine()
        self._brief.hide()
        middle, margins = Qt.AlignmentFlag.AlignVCenter, (SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        hbox(
            (self._icon, 0, middle), (self._label, 1), (self._brief, 1), (self._action, 0, middle),
            of=self, margins=margins,
        )  # fmt: skip
        theme_notifier().changed.connect(self._draw)
        self.hide()
        self._draw()

    def say(
        self, text: str, action: str = "", callback: Callable[[], object] | None = None
    ) -> None:
        """Show `text`; with "" hide."""
        self._label.setText(text)
        self._brief.set_text(text)
        self._callback = callback or (lambda: None)
        self._action.setText(action)
        self._action.setVisible(bool(action and callback))
        self._fit()
        self.setVisible(bool(text))

    def text(self) -> str:
        return self._label.text()

    def is_brief(self) -> bool:
        """Whether it is elided to one line, with the full text in the tooltip."""
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

    def _draw(self) -> None:
        restyle(self, notice=self._kind)
        self._fit()
        name, color = ICONS[self._kind]
        self._icon.setPixmap(icon_pixmap(name, color, _ICON, self.devicePixelRatioF()))


SHOWN_MS = 10_000


class Toast(QFrame):
    """Shows one message at a time. `expired` is called once, when a message disappears without its
    action: after its time, or replaced by the next one.

    Alt with the first letter of the action triggers it, wherever the focus is."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._host = parent
        self.setProperty("notice", "info")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._label, self._action = QLabel(), QPushButton()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._action.setProperty("kind", "link")
        self._action.clicked.connect(self.act)
        close = IconButton("close", "Close", self.dismiss)
        margins = (SPACE_3, SPACE_1, SPACE_1, SPACE_1)
        hbox(self._label, self._action, close, of=self, spacing=SPACE_3, margins=margins)
        self._callback: Callable[[], object] | None = None
        self._expired: Callable[[], object] | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.dismiss)
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
        self._host.installEventFilter(self)  # while it is shown: it is called for every event
        self._timer.start(shown_ms)

    def text(self) -> str:
        return self._label.text() if not self.isHidden() else ""

    def dismiss(self) -> None:
        """Hide the message."""
        self._timer.stop()
        self.hide()
        self._host.removeEventFilter(self)
        expired, self._expired, self._callback = self._expired, None, None
        if expired is not None:
            expired()

    def act(self) -> None:
        """Trigger the action."""
        callback, self._expired = self._callback, None
        self.dismiss()
        if callback is not None:
            callback()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return super().eventFilter(watched, event)

    def _place(self) -> None:
        self.adjustSize()
        area = self._host.rect()
        self.move((area.width() - self.width()) // 2, area.height() - self.height() - SPACE_4)
