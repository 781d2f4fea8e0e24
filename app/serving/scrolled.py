"""What scrolls when it is high, and is never narrower than what stands in it."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QStyle, QVBoxLayout, QWidget

from widgets.theme import SPACE_2


class Scrolled(QScrollArea):
    """`name`: for who hears it. Its fields have the keyboard; see `scroll_by_keys` where it has
    none."""

    def __init__(self, inside: QWidget, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._inside = inside
        inside.setProperty("bare", True)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidget(inside)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)

    def minimumSizeHint(self) -> QSize:
        bar = self.style().pixelMetric(QStyle.PixelMetric.PM_ScrollBarExtent)
        width = self._inside.minimumSizeHint().width() + bar
        return QSize(width, super().minimumSizeHint().height())


class ScrolledForm(Scrolled):
    """A form keeps its height where there is more room."""

    def __init__(self, form: QWidget, name: str) -> None:
        holder = QWidget()
        inside = QVBoxLayout(holder)
        inside.setContentsMargins(0, 0, SPACE_2, 0)
        inside.addWidget(form)
        inside.addStretch(1)
        super().__init__(holder, name)
