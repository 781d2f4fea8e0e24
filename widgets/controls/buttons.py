"""Icon buttons: plain, shown on hover, copy, jump to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QRect, Qt
from PySide6.QtGui import QGuiApplication, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QHBoxLayout,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4


class IconButton(QToolButton):
    """An icon with a tooltip that is also its accessible name."""

    def __init__(
        self, icon: str, text: str, pressed: Callable[[], object], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setToolTip(text)
        self.setAccessibleName(text)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        set_icon(self, icon)
        self.clicked.connect(lambda: pressed())


class QuietButton(IconButton):
    """Drawn only while the pointer is over its owner, or while it has the focus."""

    is_lit = False

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.is_lit or self.hasFocus():
            super().paintEvent(event)


class CopyButton(QuietButton):
    """Copies a text and shows a tick until the pointer leaves."""

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
    """Floats above the end of the transcript while the user has scrolled up."""

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


class ButtonRows(QWidget):
    """Buttons in as many rows as needed; `arrange` after showing or hiding some."""

    def __init__(self, buttons: Sequence[QAbstractButton]) -> None:
        super().__init__()
        self._buttons: list[QAbstractButton] = []
        self._rows: list[QHBoxLayout] = []
        self._places: list[list[QAbstractButton]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(SPACE_1)
        for button in buttons:
            self.add(button)

    def add(self, button: QAbstractButton) -> None:
        """Append a button."""
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addStretch(1)
        self._column.addLayout(row)
        self._rows.append(row)
        self._buttons.append(button)
        self.arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def arrange(self) -> None:
        """Fill one row after the other."""
        places = self._fitting()
        if places == self._places:
            return
        self._places = places
        for row in self._rows:
            while row.count() > 1:
                row.takeAt(0)
        for row, buttons in zip(self._rows, places, strict=False):
            for place, button in enumerate(buttons):
                row.insertWidget(place, button)

    def _fitting(self) -> list[list[QAbstractButton]]:
        rows: list[list[QAbstractButton]] = [[]]
        left = self.width()
        for button in self._buttons:
            wanted = button.sizeHint().width() + SPACE_2
            if not button.isHidden() and rows[-1] and left < wanted - SPACE_2:
                rows.append([])
                left = self.width()
            rows[-1].append(button)
            left -= 0 if button.isHidden() else wanted
        return rows
