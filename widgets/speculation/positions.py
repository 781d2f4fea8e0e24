"""`PositionBars`: acceptance rate by draft position."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from widgets.plot.painted import PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, theme

_WIDEST = 44
_GAP = 4
_LEAST_FOR_TEXT = 34


class PositionBars(PaintedPlot):
    """A column per position: the outline is the number drafted, the filled part the number
    accepted, the text above it the acceptance rate."""

    preferred = QSize(220, 120)
    least = QSize(120, 64)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Acceptance by position", parent=parent)
        self._drafted: tuple[int, ...] = ()
        self._accepted: tuple[int, ...] = ()

    def show_counts(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        counts = tuple(drafted), tuple(accepted)
        if counts == (self._drafted, self._accepted):
            return
        self._drafted, self._accepted = counts
        text = "\n".join(
            f"Position {i}: {kept:,} of {made:,} accepted ({100 * kept / made:.0f} %)"
            for i, (made, kept) in enumerate(zip(*counts, strict=True), start=1)
            if made
        )
        self.setToolTip(text)
        self.setAccessibleDescription(text)
        self.update()

    def values_table(self) -> ValuesTable:
        """A row per draft position, from 1."""
        rows = tuple(
            (place, made, kept, 100 * kept / made if made else None)
            for place, (made, kept) in enumerate(zip(self._drafted, self._accepted, strict=True), 1)
        )
        headers = ("position", "drafted", "accepted", "acceptance rate (%)")
        return ValuesTable(headers, rows, (0, 0, 0, 1))

    # Painting ----------------------------------------------------------------------------------

    def bar_rect(self, index: int) -> QRectF:
        """The whole height of a column."""
        count = max(1, len(self._drafted))
        pitch = min(_WIDEST + _GAP, self.width() / count)
        line = round(self.line_height)
        height = max(1.0, self.height() - 2.0 * (line + SPACE_1))
        return QRectF(index * pitch, line + SPACE_1, pitch - _GAP, height)

    def paint(self, painter: QPainter) -> None:
        most = max(self._drafted, default=0)
        for index, (made, kept) in enumerate(zip(self._drafted, self._accepted, strict=True)):
            if made:
                self._paint_bar(painter, index, made / most, kept / made)

    def _paint_bar(self, painter: QPainter, index: int, reached: float, share: float) -> None:
        table, area = theme(), self.bar_rect(index)
        outline = area.adjusted(0, area.height() * (1 - reached), 0, 0)
        filled = outline.adjusted(0, outline.height() * (1 - share), 0, 0)
        painter.fillRect(outline, table.color("raised"))
        painter.fillRect(filled, table.line_color("draft"))
        painter.setPen(table.color("border_strong"))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(outline.adjusted(0.5, 0.5, -0.5, -0.5))
        painter.setPen(table.color("text_muted"))
        line = QRectF(area.left(), area.bottom() + SPACE_1, area.width(), self.height())
        line.setBottom(self.height())
        self._centered(painter, line, f"{index + 1}")
        if area.width() >= _LEAST_FOR_TEXT:
            painter.setPen(table.color("text"))
            above = QRectF(area.left(), 0, area.width(), area.top() - SPACE_1)
            above.moveBottom(outline.top() - 2)
            self._centered(painter, above, f"{100 * share:.0f} %")

    def _centered(self, painter: QPainter, area: QRectF, text: str) -> None:
        width = self.pen.width(text)
        start = QRectF(area.center().x() - width / 2, area.top(), width, area.height())
        self.pen.left(painter, start, text)
