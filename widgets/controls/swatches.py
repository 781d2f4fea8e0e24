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
    """As many entries as fit, from the left; all of them in lines if it `wraps`."""

    def __init__(
        self, swatches: Sequence[Swatch], parent: QWidget | None = None, *, wraps: bool = False
    ) -> None:
        super().__init__(parent)
        # a fixed height is that of the hint, one line, whatever the height for the width
        vertical = QSizePolicy.Policy.Minimum if wraps else QSizePolicy.Policy.Fixed
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, vertical)
        policy.setHeightForWidth(wraps)
        self._wraps = wraps
        self.setSizePolicy(policy)
        self.set_swatches(swatches)
        theme_notifier().changed.connect(self.update)

    def set_swatches(self, swatches: Sequence[Swatch]) -> None:
        self._swatches = swatches
        self.setAccessibleName("Colors: " + ", ".join(swatch.text for swatch in swatches))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        width = sum(swatch.width + SPACE_3 for swatch in self._swatches) - SPACE_3
        return QSize(width, _line_height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, _line_height())

    def hasHeightForWidth(self) -> bool:
        return self._wraps

    def heightForWidth(self, width: int) -> int:
        lines = self._lines(width)
        return len(lines) * _line_height() + (len(lines) - 1) * SPACE_1

    def _lines(self, width: int) -> list[list[Swatch]]:
        """The entries by line."""
        lines: list[list[Swatch]] = [[]]
        left = 0
        for swatch in self._swatches:
            if left + swatch.width > width and (lines[-1] or not self._wraps):
                lines.append([])
                left = 0
            lines[-1].append(swatch)
            left += swatch.width + SPACE_3
        return lines if self._wraps else lines[:1]

    def paintEvent(self, event: QPaintEvent) -> None:
        table, painter = theme(), QPainter(self)
        painter.setFont(ui_font("small"))
        painter.setPen(table.color("text_muted"))
        height = _line_height() if self._wraps else self.height()
        for number, line in enumerate(self._lines(self.width())):
            left, top = 0, number * (height + SPACE_1)
            for swatch in line:
                _paint(painter, swatch, QRectF(left, top, swatch.width, height), table)
                left += swatch.width + SPACE_3
        painter.end()


def _line_height() -> int:
    return QFontMetrics(ui_font("small")).height()


def _paint(painter: QPainter, swatch: Swatch, place: QRectF, table: Theme) -> None:
    left, top = place.left(), place.top() + (int(place.height()) - _SIDE) // 2
    for color in swatch.colors(table):
        painter.fillRect(QRectF(left, top, _SIDE - 1, _SIDE), QBrush(QColor(color), swatch.fill))
        left += _SIDE
    if swatch.mark:
        middle = (_SIDE - _MARK) / 2
        painter.fillRect(
            QRectF(left - _SIDE + middle, top + middle, _MARK, _MARK), table.color(swatch.mark)
        )
    flags = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight
    painter.drawText(place, flags, swatch.text)
