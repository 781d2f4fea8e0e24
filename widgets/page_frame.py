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

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QStackedWidget, QTabBar, QVBoxLayout, QWidget

from widgets.fonts import text_scale
from widgets.theme import SPACE_2

MOST_LEFT = 0.42
"""Of the page's width, what the left half begins with at most."""

MOST_LEFT_OF_LARGE_TEXT = 0.56
"""The same where text is larger than usual: a form needs its width more than what stands beside."""

UPPER = 0.58
"""Of the page's height, what the list or the form begins with where the halves stand above each
other: there is something to do in it from the start, below it often not yet."""


class PageFrame(QWidget):
    """`name` of the tabs for a screen reader; `left_width` to begin with, and `narrow`, the width
    below which the halves stand above each other: pixels, at the usual size of text. `stretch`: how
    they share new room."""

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
        self._left_width = left_width
        self._scale = text_scale()
        self._is_placed = False  # the halves have the widths that they begin with
        self._upper = UPPER
        self._split.splitterMoved.connect(lambda *_: self._keep_sizes())
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
        self._arrange()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest and self._scale != text_scale():
            self._is_placed = False  # larger text wants wider halves
            self._arrange()
        return super().event(event)

    def _arrange(self) -> None:
        self._scale = text_scale()
        is_narrow = self.width() < self._narrow * max(1.0, self._scale)
        was_narrow = self._split.orientation() is Qt.Orientation.Vertical
        if is_narrow:
            self._split.setOrientation(Qt.Orientation.Vertical)
            upper = round(self._upper * self.height())
            self._split.setSizes([upper, self.height() - upper])
        elif was_narrow or not self._is_placed:  # heights would become widths
            self._is_placed = True
            self._split.setOrientation(Qt.Orientation.Horizontal)
            most = min(MOST_LEFT * self._scale, MOST_LEFT_OF_LARGE_TEXT) * self.width()
            left = round(min(self._left_width * self._scale, most))
            self._split.setSizes([left, self.width() - left])

    def _keep_sizes(self) -> None:
        first, second = self._split.sizes()
        if self._split.orientation() is Qt.Orientation.Horizontal:
            self._left_width = round(first / self._scale)
        else:
            self._upper = first / max(1, first + second)
