"""`Callout`: a box with an arrow beside the control that a lesson points at, and a ring around it.

It is a child of the window and not modal: the control beside it, and everything else, works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRect, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import (
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QTabBar, QWidget

from app.window.docks import DockArea
from widgets.controls.kept_focus import tab_through
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox, wrapped
from widgets.theme.fonts import scaled
from widgets.theme.theme import RADIUS, SPACE_1, SPACE_2, SPACE_3, SPACE_4, theme, theme_notifier

ARROW = 12
WIDTH = 296
MOST_WIDTH = 0.45
"""Of the window's: large text would have it cover the charts beside the settings."""
RIM = SPACE_1 + ARROW
"""From the control to the callout's edge where both boxes have an edge in common: its ring, and the
room for an arrow."""
DONE = "&Done"
"""Text of the button that ends a lesson."""
FOLLOW_MS = 100
"""The control moves with its list and the window."""
TOOLBAR = 56
"""Below the tabs of docks: the buttons of the open panel."""


class Ring(QWidget):
    """Marks the control, also where the callout has no room at its level for an arrow."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        theme_notifier().changed.connect(self.update)
        self.hide()

    def surround(self, place: QRect) -> None:
        """Empty: hide it."""
        self.setVisible(not place.isEmpty())
        around = place.adjusted(-SPACE_1, -SPACE_1, SPACE_1, SPACE_1)
        if around != self.geometry():
            self.setGeometry(around)
            self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme().color("accent"), 2))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), RADIUS, RADIUS)


class Callout(QFrame):
    """`say` shows it; `point_at` chooses the control. Its buttons have the keys Alt+D, Alt+N and
    Alt+L. Esc leaves, wherever the focus is, unless a control uses it. Dragged, it stays there
    until it is hidden."""

    def __init__(
        self,
        window: QWidget,
        go_on: Callable[[], object],
        leave: Callable[[], object],
        clear: Sequence[QWidget] = (),
    ) -> None:
        """clear: widgets that it does not cover where there is room elsewhere."""
        super().__init__(window)
        self.ring = Ring(window)
        self._clear, self._leave = clear, leave
        self._watched: tuple[QWidget, ...] = ()
        self._target: QWidget | None = None
        self._tip = QPoint()  # of the arrow, in our coordinates
        self._is_right = True  # of the control
        self._dragged: QPoint | None = None  # its corner
        self._grip = QPoint()
        self._head = label("", "small")
        self._title = label("", "title")
        self._title.setWordWrap(True)
        self._text, self._why = wrapped(), wrapped("small")
        self.next = button("", go_on, kind="primary")
        self.leave = button("&Leave", leave, "Stop the load and restore the settings (Esc)")
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
        self.leave.setVisible(next_text != DONE)  # which does the same
        self.show()
        self.raise_()
        self._place()

    @property
    def text(self) -> str:
        return self._text.text()

    def point_at(self, target: QWidget | None, *watched: QWidget) -> None:
        """The control beside it, with Tab from its last part to this box; None: in the middle of
        the window. watched: it does not cover these either, as those of `clear`."""
        self._target, self._watched = target, watched
        if target is not None:
            last, following = target, target.nextInFocusChain()
            while following is not None and target.isAncestorOf(following):
                last, following = following, following.nextInFocusChain()
            tab_through(last, self.leave, self.next)
        self._place()

    def _place(self) -> None:
        window = self.parentWidget()
        if window is None or self.isHidden():
            return
        self.setFixedWidth(min(scaled(WIDTH) + 2 * ARROW, round(MOST_WIDTH * window.width())))
        height = max(self.heightForWidth(self.width()), self.minimumSizeHint().height())
        self.setFixedHeight(height)
        target, before = self._target, (self.geometry(), self._tip)
        self.ring.surround(QRect() if target is None else _seen(target, window))
        rim = SPACE_2, SPACE_2, -SPACE_2, -SPACE_2
        self.move(self._corner(window, window.rect().adjusted(*rim)))
        if (self.geometry(), self._tip) != before:  # else it would be painted at every look
            self.raise_()
            self.update()

    def _corner(self, window: QWidget, room: QRect) -> QPoint:
        """Where it is beside the control; sets the arrow's tip."""
        target = self._target
        if self._dragged is not None:
            self._tip = QPoint()
            free = QRect(room.topLeft(), room.size() - self.size())
            x = max(room.left(), min(self._dragged.x(), free.right()))
            return QPoint(x, max(room.top(), min(self._dragged.y(), free.bottom())))
        if target is None or target.visibleRegion().isEmpty():
            self._tip = QPoint()
            return room.center() - QPoint(self.width() // 2, self.height() // 2)
        place = _seen(target, window)
        clear = [_seen(one, window) for one in (*self._clear, *self._watched) if one is not target]
        docks, only = window.findChild(DockArea), Qt.FindChildOption.FindDirectChildrenOnly
        clear += [
            _seen(tabs, window).adjusted(0, 0, 0, scaled(TOOLBAR))
            for tabs in (docks.findChildren(QTabBar, options=only) if docks is not None else ())
        ]
        corner = beside(self.size(), place, [one for one in clear if not one.isEmpty()], room)
        box, at = QRect(corner, self.size()), place.center().y() - corner.y()
        self._is_right = box.left() > place.right()
        is_at_side = self._is_right or box.right() < place.left()
        is_level = RADIUS + ARROW <= at <= self.height() - RADIUS - ARROW
        self._tip = QPoint(0 if self._is_right else self.width(), at)
        if not (is_at_side and is_level):
            self._tip = QPoint()  # below or above: no arrow
        return corner

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

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._grip = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Moves only with a button pressed."""
        self._dragged = self.mapToParent(event.position().toPoint()) - self._grip
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Of the window: it gets the keys that no control used."""
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress:
            return False
        is_escape = event.key() == Qt.Key.Key_Escape
        if is_escape:
            self._leave()
        return is_escape

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow.start()
        self.window().installEventFilter(self)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._dragged = None
        self._follow.stop()
        self.window().removeEventFilter(self)
        self.ring.hide()


def _seen(widget: QWidget, window: QWidget) -> QRect:
    """Its visible part, in the window's coordinates."""
    seen = widget.visibleRegion().boundingRect()
    return QRect(widget.mapTo(window, seen.topLeft()), seen.size())


def beside(size: QSize, target: QRect, clear: Sequence[QRect], room: QRect) -> QPoint:
    """The corner of a box of `size`, with room for an arrow at both sides, in `room` that covers
    least of `target`, then least of `clear`: at its right, its left (also level with a gap between
    `clear`), below or above it (or above one of `clear` around it) with one edge in common, or in
    the corner of the room. Of equals the nearest level that the room does not move it away from."""
    width, height = size.width(), size.height()
    sides = (target.right() + SPACE_2, target.left() - SPACE_2 - width)
    edges = (target.left() - RIM, target.right() + RIM - width)
    levels = [one.bottom() + SPACE_2 for one in clear]
    levels += [one.top() - SPACE_2 - height for one in clear]
    levels += [room.bottom() - height, room.top()]
    corners = [(x, target.center().y() - height // 2) for x in sides]
    corners += [(x, target.bottom() + SPACE_2) for x in edges]
    corners += [(x, target.top() - SPACE_2 - height) for x in edges]
    around = [one for one in clear if one.contains(target.center())]
    corners += [(x, one.top() - SPACE_2 - height) for x in edges for one in around]
    corners += [(x, y) for x in sides for y in levels]
    corners.append((room.right() - width, room.bottom() - height))

    def within(x: int, y: int) -> QPoint:
        x = max(min(x, room.right() - width), room.left())
        return QPoint(x, max(min(y, room.bottom() - height), room.top()))

    def cost(x: int, y: int) -> tuple[int, int, bool, int]:
        corner = within(x, y)
        box = QRect(corner, size)
        covered = sum(_area(box.adjusted(ARROW, 0, -ARROW, 0) & one) for one in clear)
        away = abs(box.center().y() - target.center().y())
        return _area(box & target), covered, corner != QPoint(x, y), away

    return within(*min(corners, key=lambda corner: cost(*corner)))


def _area(shared: QRect) -> int:
    return 0 if shared.isEmpty() else shared.width() * shared.height()
