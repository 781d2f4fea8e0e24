"""A page of two halves: tabs with a list or a form each, and what they are about beside them.

wide                              narrow
+-------------+---------------+   +--------------------+
| One | Two   |               |   | One | Two          |
| form        |  right        |   | form               |
|             |               |   +--------------------+
+-------------+---------------+   | right              |
                                  +--------------------+
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QStackedWidget, QTabBar, QVBoxLayout, QWidget

from widgets.theme import SPACE_2


class PageFrame(QWidget):
    """`name` of the tabs for a screen reader; `left_width` to begin with, `narrow` the width in
    pixels below which the halves stand above each other. `stretch`: how they share new room."""

    def __init__(
        self,
        name: str,
        forms: Sequence[tuple[str, QWidget]],
        right: QWidget,
        *,
        left_width: int,
        narrow: int,
        stretch: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        self._narrow = narrow
        self.tabs = QTabBar()
        self.tabs.setAccessibleName(name)
        self.tabs.setExpanding(False)
        self.forms = QStackedWidget()
        for title, form in forms:
            self.tabs.addTab(title)
            self.forms.addWidget(form)
        self.tabs.currentChanged.connect(self.forms.setCurrentIndex)
        self._split = QSplitter()
        self._split.setChildrenCollapsible(False)
        self._split.addWidget(self._left())
        self._split.addWidget(right)
        self._widths = [left_width, 2 * left_width]
        self._split.setSizes(self._widths)
        for index, share in enumerate(stretch):
            self._split.setStretchFactor(index, share)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(self._split)

    def _left(self) -> QFrame:
        left = QFrame()
        left.setProperty("panel", True)
        column = QVBoxLayout(left)
        column.setContentsMargins(SPACE_2, SPACE_2, SPACE_2, SPACE_2)
        column.setSpacing(SPACE_2)
        column.addWidget(self.tabs)
        column.addWidget(self.forms, 1)
        return left

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = self.width() < self._narrow
        if is_narrow == (self._split.orientation() is Qt.Orientation.Vertical):
            return
        if is_narrow:
            self._widths = self._split.sizes()
            self._split.setOrientation(Qt.Orientation.Vertical)
        else:  # heights would become widths
            self._split.setOrientation(Qt.Orientation.Horizontal)
            self._split.setSizes(self._widths)
