"""`ButtonRows`: buttons that wrap to more rows."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from widgets.theme.theme import SPACE_1, SPACE_2


class ButtonRows(QWidget):
    """As wide as there is room; `arrange` when buttons were hidden or shown."""

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
        """Behind the others."""
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
