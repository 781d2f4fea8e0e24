"""`Callout`: a box with an arrow beside the control that a lesson points at.

It is a child of the window and not modal: the control beside it, and everything else, works.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QTimer
from PySide6.QtGui import QHideEvent, QPainter, QPainterPath, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox, wrapped
from widgets.theme.fonts import scaled
from widgets.theme.theme import RADIUS, SPACE_2, SPACE_3, SPACE_4, theme, theme_notifier

ARROW = 12
WIDTH = 320
FOLLOW_MS = 100
"""The control moves with its list and the window."""


class Callout(QFrame):
    """`say` shows it; `point_at` chooses the control. Its buttons have the keys Alt+D, Alt+N and
    Alt+L."""

    def __init__(
        self,
        window: QWidget,
        go_on: Callable[[], object],
        leave: Callable[[], object],
    ) -> None:
        super().__init__(window)
        self._target: QWidget | None = None
        self._tip = QPoint()  # of the arrow, in our coordinates
        self._is_right = True  # of the control
        self._head = label("", "small")
        self._title = label("", "title")
        self._title.setWordWrap(True)
        self._text, self._why = wrapped(), wrapped("small")
        self.next = button("", go_on, kind="primary")
        self.leave = button("&Leave", leave, "Stop the load and restore the settings (Esc)")
        for one in (self.next, self.leave):
            one.setAutoDefault(False)
        side = SPACE_4 + ARROW
        vbox(
            self._head, self._title, self._text, self._why,
            hbox(self.leave, STRETCH, self.next), of=self, spacing=SPACE_2,
            margins=(side, SPACE_3, side, SPACE_3),
        )  # fmt: skip
        self._follow = QTimer(self, interval=FOLLOW_MS)
        self._follow.timeout.connect(self._place)
        theme_notifier().changed.connect(self.update)
        self.hide()

    def say(self, head: str, title: str, text: str, why: str = "", next_text: str = "") -> None:
        """Show these texts; next_text: of the button, "" hides it."""
        dressed(self, f"{title}. {text}")
        for part, words in (
            (self._head, head), (self._title, title), (self._text, text), (self._why, why)
        ):  # fmt: skip
            if part.text() != words:
                part.setText(words)
            part.setVisible(bool(words))
        self.next.setText(next_text)
        self.next.setVisible(bool(next_text))
        self.show()
        self._place()

    @property
    def text(self) -> str:
        return self._text.text()

    def point_at(self, target: QWidget | None) -> None:
        """The control beside it; None: in the middle of the window."""
        self._target = target
        self._place()

    def _place(self) -> None:
        window = self.parentWidget()
        if window is None or self.isHidden():
            return
        self.setFixedWidth(min(scaled(WIDTH) + 2 * ARROW, window.width() - 2 * SPACE_4))
        height = max(self.heightForWidth(self.width()), self.minimumSizeHint().height())
        self.setFixedHeight(height)
        rim = SPACE_2, SPACE_2, -SPACE_2, -SPACE_2
        self.move(self._corner(window, window.rect().adjusted(*rim)))
        self.raise_()
        self.update()

    def _corner(self, window: QWidget, room: QRect) -> QPoint:
        """Where it is beside the control; sets the arrow's tip."""
        target = self._target
        if target is None or target.visibleRegion().isEmpty():
            self._tip = QPoint()
            return room.center() - QPoint(self.width() // 2, self.height() // 2)
        seen = target.visibleRegion().boundingRect()
        place = QRect(target.mapTo(window, seen.topLeft()), seen.size())
        self._is_right = room.right() - place.right() >= place.left()
        x = place.right() + SPACE_2 if self._is_right else place.left() - SPACE_2 - self.width()
        y = place.center().y() - self.height() // 2
        x = min(max(x, room.left()), room.right() - self.width())
        y = min(max(y, room.top()), room.bottom() - self.height())
        at = min(max(place.center().y() - y, RADIUS + ARROW), self.height() - RADIUS - ARROW)
        self._tip = QPoint(0 if self._is_right else self.width(), at)
        return QPoint(x, y)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(self.rect()).adjusted(ARROW + 1, 1, -ARROW - 1, -1)
        shape = QPainterPath()
        shape.addRoundedRect(box, RADIUS, RADIUS)
        if not self._tip.isNull():
            tip = QPointF(self._tip) + QPointF(1 if self._is_right else -1, 0)
            edge = box.left() if self._is_right else box.right()
            inside = 2 if self._is_right else -2
            arrow = QPainterPath(tip)
            arrow.lineTo(edge + inside, tip.y() - ARROW)
            arrow.lineTo(edge + inside, tip.y() + ARROW)
            arrow.closeSubpath()
            shape = shape.united(arrow)
        painter.setPen(QPen(theme().color("accent"), 2))
        painter.setBrush(theme().color("panel"))
        painter.drawPath(shape)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._follow.stop()
