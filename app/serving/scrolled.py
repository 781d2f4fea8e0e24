"""A form that scrolls when it is high, and is never narrower than what stands in it."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QFrame, QScrollArea, QStyle, QVBoxLayout, QWidget

from widgets.theme import SPACE_2


class ScrolledForm(QScrollArea):
    def __init__(self, form: QWidget) -> None:
        super().__init__()
        holder = self._holder = QWidget()
        holder.setProperty("bare", True)
        inside = QVBoxLayout(holder)
        inside.setContentsMargins(0, 0, SPACE_2, 0)
        inside.addWidget(form)
        inside.addStretch(1)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidget(holder)

    def minimumSizeHint(self) -> QSize:
        bar = self.style().pixelMetric(QStyle.PixelMetric.PM_ScrollBarExtent)
        width = self._holder.minimumSizeHint().width() + bar
        return QSize(width, super().minimumSizeHint().height())
