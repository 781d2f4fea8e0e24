"""A panel that keeps to itself what changes in it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QWidget, QWidgetItem


class Contained(QWidget):
    """Holds `content`, as large as it is itself, and asks for a new layout of what is around it
    only where the content needs another least size.

    A label whose text changes makes Qt lay out everything up to the window anew, and paint all of
    it: every layout on the way passes the request on, whether its own size changed or not. This
    one has no layout, so that the request ends here; the layouts inside have heeded it before.
    """

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
