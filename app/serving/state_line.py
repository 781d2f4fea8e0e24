"""A dot whose colour says the kind, and words."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QWidget

from widgets.stat_figures import StateKind
from widgets.theme import SPACE_2, theme, theme_notifier

_DOT = 8


class Dot(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._kind: StateKind = "idle"
        self.setFixedSize(QSize(_DOT + 2, _DOT + 2))
        theme_notifier().changed.connect(self.update)

    def set_kind(self, kind: StateKind) -> None:
        if kind != self._kind:
            self._kind = kind
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color(f"state_{self._kind}"))
        painter.drawEllipse(QRectF(1, 1, _DOT, _DOT))
        painter.end()


class StateLine(QWidget):
    """`role` of the words, as a label has it."""

    def __init__(self, role: str = "") -> None:
        super().__init__()
        self._dot, self._label = Dot(), QLabel()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setWordWrap(True)
        self._label.setProperty("role", role)
        self._label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        row.addWidget(self._dot)
        row.addWidget(self._label, 1)

    def say(self, text: str, kind: StateKind) -> None:
        self._dot.set_kind(kind)
        if text != self._label.text():
            self._label.setText(text)
            self.setAccessibleName(text)

    @property
    def wanted_width(self) -> int:
        """Pixels that the words take in one line."""
        words = self._label.fontMetrics().horizontalAdvance(self._label.text())
        return self._dot.width() + SPACE_2 + words

    def text(self) -> str:
        return self._label.text()
