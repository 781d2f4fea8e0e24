"""A panel that opens over the window at a button, and closes when one presses elsewhere."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QVBoxLayout, QWidget

from widgets.theme import SPACE_1, SPACE_2, SPACE_3


class Popover(QFrame):
    """`toggle_at(button)` opens it above the button, or below it where there is no room, or
    closes it. Escape closes it as well.

    It is a child of the window and no popup window: those grab the keyboard, which not every
    platform can, and drop-down lists inside them would close them.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        self._button: QWidget | None = None
        self.hide()

    def first_field(self) -> QWidget:
        """What gets the focus."""
        return self

    def closed(self) -> None:
        """Called after it was open."""

    def toggle_at(self, button: QWidget) -> None:
        if not self.isHidden():
            self.hide()
            return
        window = button.window()
        if self.parentWidget() is not window:
            self.setParent(window)
        self._button = button
        self.adjustSize()
        corner = button.mapTo(window, QPoint(button.width() - self.width(), 0))
        x = min(max(corner.x(), SPACE_2), window.width() - self.width() - SPACE_2)
        y = corner.y() - self.height() - SPACE_1
        if y < SPACE_2:  # no room above: below the button, as far as the window goes
            below = corner.y() + button.height() + SPACE_1
            y = max(min(below, window.height() - self.height() - SPACE_2), SPACE_2)
        self.open_at(QPoint(x, y))

    def open_at(self, corner: QPoint) -> None:
        """Show it with its upper left corner there, and the keyboard in its first field."""
        self.move(corner)
        self.show()
        self.raise_()
        self.first_field().setFocus(Qt.FocusReason.PopupFocusReason)
        if (app := QApplication.instance()) is not None:
            app.installEventFilter(self)

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
        """Whether `widget` is inside, also in a drop-down list of its own, or the button."""
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
                if self._button is not None:
                    self._button.setFocus()
                return True
        return super().event(event)
