"""What the colours of the block map mean."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme import SPACE_1, SPACE_3, theme, theme_notifier, ui_font


class BlockLegend(QWidget):
    """A row of swatches with their names."""

    _KEYS = (
        ("", "held, a colour per request"), ("mark", "shared"), ("kv_cached", "cached"),
        ("free", "free"),
    )  # fmt: skip
    _SIDE = 9

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Colours: " + ", ".join(text for _, text in self._KEYS))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def _widths(self) -> list[int]:
        metrics = QFontMetrics(ui_font("small"))
        swatches = (3 * self._SIDE, self._SIDE, self._SIDE, self._SIDE)
        return [
            swatch + SPACE_1 + metrics.horizontalAdvance(text)
            for swatch, (_, text) in zip(swatches, self._KEYS, strict=True)
        ]

    def sizeHint(self) -> QSize:
        gaps = SPACE_3 * (len(self._KEYS) - 1)
        return QSize(sum(self._widths()) + gaps, QFontMetrics(ui_font("small")).height())

    def paintEvent(self, event: QPaintEvent) -> None:
        table, painter = theme(), QPainter(self)
        painter.setFont(ui_font("small"))
        side, left = self._SIDE, 0
        top = (self.height() - side) // 2
        for (key, text), width in zip(self._KEYS, self._widths(), strict=True):
            used = side
            if key in ("", "mark"):
                shown = table.series.owners[: 3 if key == "" else 1]
                for number, color in enumerate(shown):
                    painter.fillRect(QRectF(left + number * side, top, side - 1, side), color)
                used = side * len(shown)
                if key:
                    painter.fillRect(QRectF(left + 3, top + 3, 3, 3), table.color("text"))
            else:
                painter.fillRect(QRectF(left, top, side, side), table.color(key))
            painter.setPen(table.color("text_muted"))
            place = QRectF(left + used + SPACE_1, 0, width, self.height())
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)
            left += width + SPACE_3
        painter.end()
