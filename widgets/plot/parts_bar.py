"""`PartsBar`: one stacked bar, and a row of figures for each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QSizePolicy

from widgets.plot.painted import PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, theme

BAR_HEIGHT = 16
_SIDE = 9
_LEAST = 1.0  # pixels of a part that is there


class Part(NamedTuple):
    """`share` of the whole, 0 to 1. `figures`: one text per column, right-aligned. `tip`: explains
    the part. A part without a colour is only a row, such as a sum."""

    label: str
    color: str
    share: float
    figures: tuple[str, ...]
    tip: str = ""


class PartsBar(PaintedPlot):
    """A stacked bar of the parts from left to right, above one row for each. Empty without
    parts."""

    def __init__(self, name: str, headers: Sequence[str] = ()) -> None:
        super().__init__(name)
        self._parts: tuple[Part, ...] = ()
        self._headers = tuple(headers)
        self._rows = 1
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._parts

    def show_parts(self, parts: Sequence[Part]) -> None:
        if tuple(parts) == self._parts:
            return
        self._parts = tuple(parts)
        if len(parts) > self._rows:
            self._rows = len(parts)
            self.updateGeometry()
        self.setAccessibleDescription(self.text())
        self.setToolTip("\n".join(f"{p.label}: {p.tip}" for p in parts if p.tip))
        self.update()

    def values_table(self) -> ValuesTable:
        count = max((len(part.figures) for part in self._parts), default=0)
        heads = [text or "now" for text in self._headers] or [""] * count
        blank = ("",) * count
        rows = [
            (p.label, 100 * p.share if p.color else None, *(p.figures + blank)[:count])
            for p in self._parts
        ]
        return ValuesTable(("part", "share (%)", *heads[:count]), tuple(rows), (0, 1, *[0] * count))

    def text(self) -> str:
        names = self._headers or ("",) * 9
        rows = (zip(names, part.figures, strict=False) for part in self._parts)
        words = [" ".join(f"{name} {text}".strip() for name, text in row) for row in rows]
        labels = [part.label for part in self._parts]
        return "; ".join(f"{label} {row}" for label, row in zip(labels, words, strict=True))

    def _line(self) -> float:
        return self.line_height + 3

    def _rows_top(self) -> float:
        return BAR_HEIGHT + SPACE_2 + (self._line() if self._headers else 0.0)

    def sizeHint(self) -> QSize:
        return QSize(320, round(self._rows_top() + self._rows * self._line()))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, self.sizeHint().height())

    def paint(self, painter: QPainter) -> None:
        self._paint_bar(painter)
        self._paint_rows(painter)

    def _paint_bar(self, painter: QPainter) -> None:
        table, left = theme(), 0.0
        painter.fillRect(QRectF(0, 0, self.width(), BAR_HEIGHT), table.color("pressed"))
        for part in self._parts:
            if part.share <= 0 or not part.color:
                continue
            width = max(_LEAST, part.share * self.width())
            gap = 1.0 if width > 3 else 0.0
            painter.fillRect(QRectF(left, 0, width - gap, BAR_HEIGHT), table.color(part.color))
            left += part.share * self.width()

    def _paint_rows(self, painter: QPainter) -> None:
        table, line = theme(), self._line()
        widths = self._column_widths()
        middle, right = Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag.AlignRight
        metrics = self.pen.metrics
        end = float(self.width())
        painter.setPen(table.color("text_muted"))
        for text, width in zip(reversed(self._headers), reversed(widths), strict=False):
            head = QRectF(end - width, BAR_HEIGHT + SPACE_2, width, line)
            painter.drawText(head, middle | right, text)
            end -= width + SPACE_4
        for row, part in enumerate(self._parts):
            top = self._rows_top() + row * line
            if part.color:
                mark = QRectF(0, top + (line - _SIDE) / 2, _SIDE, _SIDE)
                painter.fillRect(mark, table.color(part.color))
            end = float(self.width())
            painter.setPen(table.color("text"))
            for text, width in zip(reversed(part.figures), reversed(widths), strict=False):
                painter.drawText(QRectF(end - width, top, width, line), middle | right, text)
                end -= width + SPACE_4
            painter.setPen(table.color("text_muted"))
            room = QRectF(SPACE_4, top, max(0.0, end - SPACE_4 - SPACE_1), line)
            label = metrics.elidedText(part.label, Qt.TextElideMode.ElideRight, room.width())
            painter.drawText(room, middle, label)

    def _column_widths(self) -> list[float]:
        metrics = self.pen.metrics
        rows = [self._headers, *(part.figures for part in self._parts)]
        return [
            max(metrics.horizontalAdvance(row[column]) for row in rows if column < len(row))
            for column in range(max(map(len, rows)))
        ]
