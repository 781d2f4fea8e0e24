"""`Popover`: opens at a button, closes on a click outside."""

from __future__ import annotations

import shiboken6
from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent
from PySide6.QtWidgets import QApplication, QDockWidget, QFrame, QWidget

from widgets.controls.layouts import label, vbox
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3


class Popover(QFrame):
    """`toggle_at(button)` opens it above the button (below it without room above), or closes it;
    Escape closes it, too. At a button of a floating panel smaller than the popover, it opens beside
    that panel, over the main window.

    It is a child widget, not a popup window: those grab the keyboard, which not every platform
    allows, and drop-down lists inside would close them."""

    def __init__(self, parent: QWidget, title: str = "") -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.column = vbox(of=self, margins=(SPACE_3, SPACE_3, SPACE_3, SPACE_3))
        if title:
            self.setAccessibleName(title)
            self.title = label(title, "title")
            self.column.addWidget(self.title)
        self._button: QWidget | None = None
        self.hide()

    def first_field(self) -> QWidget:
        """The widget that takes the focus on opening."""
        return self

    def closed(self) -> None:
        """Called after it was closed."""

    def toggle_at(self, button: QWidget) -> None:
        if not self.isHidden():
            self.hide()
            return
        anchor, window = button, button.window()
        self.adjustSize()
        above = window.parentWidget()
        if isinstance(window, QDockWidget) and above is not None and not self._fits(window):
            anchor, window = window, above.window()
        if self.parentWidget() is not window:
            self.setParent(window)
            self.adjustSize()
        self._button = button
        right = button.mapToGlobal(QPoint(button.width() - self.width(), 0))
        top = window.mapFromGlobal(anchor.mapToGlobal(QPoint(0, 0))).y()
        x = window.mapFromGlobal(right).x()
        x = min(max(x, SPACE_2), window.width() - self.width() - SPACE_2)
        y = top - self.height() - SPACE_1
        if y < SPACE_2:  # no room above: below the button, as far as the window goes
            below = top + anchor.height() + SPACE_1
            y = max(min(below, window.height() - self.height() - SPACE_2), SPACE_2)
        self.open_at(QPoint(x, y))

    def _fits(self, window: QWidget) -> bool:
        return (
            self.width() + 2 * SPACE_2 <= window.width()
            and self.height() + 2 * SPACE_2 <= window.height()
        )

    def open_at(self, corner: QPoint) -> None:
        """Show it with its upper left corner at a point, and focus its first field."""
        self.move(corner)
        self.show()
        self.raise_()
        self.first_field().setFocus(Qt.FocusReason.PopupFocusReason)
        if (app := QApplication.instance()) is not None:
            app.installEventFilter(self)

    def grow(self) -> None:
        """Upwards, where its content became higher while it is open."""
        before = self.geometry()
        self.adjustSize()
        if self.isHidden() or self.height() <= before.height():
            self.setGeometry(before)
        else:
            self.move(before.x(), max(before.bottom() + 1 - self.height(), SPACE_2))

    def setVisible(self, visible: bool) -> None:
        """Return the focus to where it was, not to the first button of the window."""
        inside, button = QApplication.focusWidget(), self._button
        is_left = not visible and inside is not None and self.isAncestorOf(inside)
        if is_left and button is not None and shiboken6.isValid(button) and button.isVisible():
            button.setFocus(Qt.FocusReason.PopupFocusReason)
        super().setVisible(visible)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if (app := QApplication.instance()) is not None:
            app.removeEventFilter(self)
        if self._button is not None:
            self.closed()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if (
            event.type() == QEvent.Type.MouseButtonPress
            and isinstance(watched, QWidget)
            and not self._holds(watched)
        ):
            self.hide()
        return super().eventFilter(watched, event)

    def _holds(self, widget: QWidget | None) -> bool:
        """Whether `widget` is the button, or inside the popover or its drop-down lists."""
        while widget is not None:
            if widget is self or widget is self._button:
                return True
            widget = widget.parentWidget()
        return False

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape:
            if event.type() == QEvent.Type.ShortcutOverride:
                event.accept()
                return True
            if event.type() == QEvent.Type.KeyPress:
                self.hide()
                return True
        return super().event(event)
