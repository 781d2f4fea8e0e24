"""Text that is drawn again and again: shaped once, then only its glyphs are put down."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QStaticText, QTransform


def shape(text: str, font: QFont) -> QStaticText:
    """`text` with its glyphs and their places in `font`."""
    shaped = QStaticText(text)
    shaped.setTextFormat(Qt.TextFormat.PlainText)
    shaped.setPerformanceHint(QStaticText.PerformanceHint.AggressiveCaching)
    shaped.prepare(QTransform(), font)
    return shaped


class TextPen:
    """Draws in one font; what was shaped before is not shaped again."""

    def __init__(self, font: QFont, most: int = 512) -> None:
        self.font = font
        self._shaped = lru_cache(maxsize=most)(lambda text: shape(text, font))

    def width(self, text: str) -> float:
        return float(self._shaped(text).size().width())

    def elided(self, text: str, width: float) -> str:
        """`text`, cut with an ellipsis where it is wider than `width`."""
        if self.width(text) <= width:
            return text
        return QFontMetricsF(self.font).elidedText(text, Qt.TextElideMode.ElideRight, width)

    def left(self, painter: QPainter, rect: QRectF, text: str) -> None:
        """At the left of `rect`, in its vertical middle, in the painter's pen."""
        self._draw(painter, rect.left(), rect, text)

    def right(self, painter: QPainter, rect: QRectF, text: str) -> None:
        self._draw(painter, rect.right() - self.width(text), rect, text)

    def _draw(self, painter: QPainter, x: float, rect: QRectF, text: str) -> None:
        shaped = self._shaped(text)
        painter.setFont(self.font)
        y = rect.center().y() - shaped.size().height() / 2
        painter.drawStaticText(QPointF(round(x), round(y)), shaped)
