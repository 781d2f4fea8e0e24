"""Frames: fitted contents, isolated layouts, scrolling by keys, two halves with tabs, opaque."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QSplitter, QTabBar, QWidget, QWidgetItem

from widgets.controls.layouts import dressed, stack, vbox
from widgets.theme.fonts import text_scale
from widgets.theme.theme import SPACE_2, theme


class FittedFrame(QFrame):
    """Calls `fit` when it was resized, and when its contents have another text or text size."""

    @abstractmethod
    def fit(self) -> None:
        """Arrange the contents for the size of the frame."""

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self.fit()
        return super().event(event)


class Contained(QWidget):
    """Holds `content` at its own size, and passes layout requests to its surroundings only when the
    minimum size of the content changes.

    When the text of a label changes, Qt lays out and paints everything up to the window: each
    layout passes the request on, whether its own size changed or not. This widget has no layout, so
    the request ends here, after the layouts inside have handled it."""

    def __init__(self, content: QWidget) -> None:
        super().__init__()
        self.content = content
        content.setParent(self)
        self.setSizePolicy(content.sizePolicy())
        self._item = QWidgetItem(content)
        self._least = self._item.minimumSize()

    def sizeHint(self) -> QSize:
        return self.content.sizeHint()

    def minimumSizeHint(self) -> QSize:
        return self._item.minimumSize()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self._pass_on()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.content.resize(self.size())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._pass_on()  # nothing is requested of what is hidden

    def _pass_on(self) -> None:
        least = self._item.minimumSize()
        if least != self._least:
            self._least = least
            self.updateGeometry()


def scroll_area(content: QWidget, name: str = "") -> QScrollArea:
    """A vertical scroll area; `name`: its accessible name."""
    area = dressed(QScrollArea(), name)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(content)
    return area


def scroll_by_keys(area: QScrollArea) -> None:
    """Give `area` a tab stop and a focus ring while its content is larger than it, so that the
    arrow keys scroll it. (A form's area needs none: its fields take the focus and scroll into
    view.)"""
    area.setProperty("ring", True)
    bars = (area.verticalScrollBar(), area.horizontalScrollBar())

    def follow() -> None:
        scrolls = any(bar.maximum() > bar.minimum() for bar in bars)
        area.setFocusPolicy(Qt.FocusPolicy.TabFocus if scrolls else Qt.FocusPolicy.NoFocus)

    for bar in bars:
        bar.rangeChanged.connect(follow)
    follow()


MOST_LEFT = 0.42
"""Initial share of the page's width for the left half."""

MOST_LEFT_OF_LARGE_TEXT = 0.56
"""The same with larger text: a form needs its width more than the other half."""

UPPER = 0.58
"""Initial share of the height for the left half, when the halves are stacked: it is usable from the
start, the other one is often empty."""


class PageFrame(QWidget):
    """Two halves, side by side or stacked, the left one with tabs. `name`: accessible name of the
    tabs; `left_width`: initial width; `narrow`: width below which they are stacked, both in pixels
    at the default text size. The halves follow from the page's width and the text size alone,
    until the user moves them: a page may be laid out hidden, in a window of another size."""

    def __init__(
        self,
        name: str,
        forms: Sequence[tuple[str, QWidget]],
        right: QWidget,
        *,
        left_width: int,
        narrow: int,
    ) -> None:
        super().__init__()
        self._narrow = narrow
        self.tabs = dressed(QTabBar(), name)
        self.tabs.setExpanding(False)
        self.forms = stack(*(form for _, form in forms))
        for title, _ in forms:
            self.tabs.addTab(title)
        self.tabs.currentChanged.connect(self.forms.setCurrentIndex)
        self._split = QSplitter()
        self._split.setChildrenCollapsible(False)
        left = QFrame()
        left.setProperty("panel", True)
        vbox(self.tabs, (self.forms, 1), of=left, margins=(SPACE_2, SPACE_2, SPACE_2, SPACE_2))
        self._split.addWidget(left)
        self._split.addWidget(right)
        self._left_width = float(left_width)
        self._scale = text_scale()
        self._is_moved = False  # by the user
        self._upper = UPPER
        self._split.splitterMoved.connect(lambda *_: self._keep_sizes())
        self._split.setStretchFactor(1, 1)
        vbox(self._split, of=self)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._arrange()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest and self._scale != text_scale():
            self._arrange()
        return super().event(event)

    def _arrange(self) -> None:
        self._scale = text_scale()
        width, height = self.width(), self.height()
        if width < self._narrow * max(1.0, self._scale):
            self._split.setOrientation(Qt.Orientation.Vertical)
            upper = round(self._upper * height)
            self._split.setSizes([upper, height - upper])
        else:
            self._split.setOrientation(Qt.Orientation.Horizontal)
            most = min(MOST_LEFT * self._scale, MOST_LEFT_OF_LARGE_TEXT)
            left = self._left_width * self._scale
            left = round(left if self._is_moved else min(left, most * width))
            self._split.setSizes([left, width - left])

    def _keep_sizes(self) -> None:
        first, second = self._split.sizes()
        if self._split.orientation() is Qt.Orientation.Horizontal:
            self._left_width, self._is_moved = first / self._scale, True
        else:
            self._upper = first / max(1, first + second)


class Surface(QWidget):
    """Opaque: when it is scrolled, Qt moves the pixels and paints only what comes into view."""

    def __init__(self) -> None:
        super().__init__()
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), theme().color("panel"))
        painter.end()
