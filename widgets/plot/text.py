"""`TextPen`: draws cached static text."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QStaticText, QTransform


class _Shaped(NamedTuple):
    text: QStaticText
    width: float
    height: float


def _shape(text: str, font: QFont) -> _Shaped:
    shaped = QStaticText(text)
    shaped.setTextFormat(Qt.TextFormat.PlainText)
    shaped.setPerformanceHint(QStaticText.PerformanceHint.AggressiveCaching)
    shaped.prepare(QTransform(), font)
    size = shaped.size()
    return _Shaped(shaped, size.width(), size.height())


class TextPen:
    """Draws text in one font, with cached shaping."""

    def __init__(self, font: QFont, most: int = 512) -> None:
        self.font = font
        self.metrics = QFontMetricsF(font)
        self._shaped = lru_cache(maxsize=most)(lambda text: _shape(text, font))

    def width(self, text: str) -> float:
        return self._shaped(text).width

    def elided(
        self, text: str, width: float, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight
    ) -> str:
        """`text`, elided to `width`."""
        return text if self.width(text) <= width else self.metrics.elidedText(text, mode, width)

    def left(self, painter: QPainter, rect: QRectF, text: str) -> None:
        """Left-aligned and vertically centred in `rect`, in the painter's pen. The painter must
        have this font: see `use`."""
        shaped = self._shaped(text)
        self._draw(painter, rect.left(), rect.center().y(), shaped)

    def right(self, painter: QPainter, rect: QRectF, text: str) -> None:
        shaped = self._shaped(text)
        self._draw(painter, rect.right() - shaped.width, rect.center().y(), shaped)

    def use(self, painter: QPainter) -> TextPen:
        painter.setFont(self.font)
        return self

    @staticmethod
    def _draw(painter: QPainter, x: float, middle: float, shaped: _Shaped) -> None:
        painter.drawStaticText(QPointF(round(x), round(middle - shaped.height / 2)), shaped.text)
