"""`Swatches`: the legend of a map or timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme.theme import SPACE_1, SPACE_3, Theme, theme, theme_notifier, ui_font

_SIDE = 9
_MARK = 3


class Swatch(NamedTuple):
    """One legend entry. `colors`: from the theme, side by side; `mark`: colour of a small square in
    the middle; `fill`: the brush pattern."""

    text: str
    colors: Callable[[Theme], Sequence[str]]
    mark: str = ""
    fill: Qt.BrushStyle = Qt.BrushStyle.SolidPattern

    @property
    def width(self) -> int:
        names = QFontMetrics(ui_font("small")).horizontalAdvance(self.text)
        return _SIDE * len(self.colors(theme())) + SPACE_1 + names


def of(name: str) -> Callable[[Theme], Sequence[str]]:
    """A swatch of the theme colour `name`."""
    return lambda table: (table.value(name),)


class Swatches(QWidget):
    """As many entries as fit, from the left."""

    def __init__(self, swatches: Sequence[Swatch], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.set_swatches(swatches)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def set_swatches(self, swatches: Sequence[Swatch]) -> None:
        self._swatches = swatches
        self.setAccessibleName("Colors: " + ", ".join(swatch.text for swatch in swatches))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        width = sum(swatch.width + SPACE_3 for swatch in self._swatches) - SPACE_3
        return QSize(width, QFontMetrics(ui_font("small")).height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        table, painter = theme(), QPainter(self)
        painter.setFont(ui_font("small"))
        painter.setPen(table.color("text_muted"))
        left, top = 0, (self.height() - _SIDE) // 2
        for swatch in self._swatches:
            if left + swatch.width > self.width():
                break
            place = QRectF(left, 0, swatch.width, self.height())
            for color in swatch.colors(table):
                brush = QBrush(QColor(color), swatch.fill)
                painter.fillRect(QRectF(left, top, _SIDE - 1, _SIDE), brush)
                left += _SIDE
            if swatch.mark:
                middle = (_SIDE - _MARK) / 2
                painter.fillRect(
                    QRectF(left - _SIDE + middle, top + middle, _MARK, _MARK),
                    table.color(swatch.mark),
                )
            flags = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight
            painter.drawText(place, flags, swatch.text)
            left = round(place.right()) + SPACE_3
        painter.end()
