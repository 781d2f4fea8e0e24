"""Bars of quantization quality: error per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from widgets.plot.axis import Range, labelled_ticks
from widgets.plot.painted import NONE, PaintedPlot, paint_value_axis
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, theme

ERROR_COLOR, ROUNDING_COLOR = "accent", "text_muted"
_TICK_DISTANCE = 28
_WIDEST, _GAP = 40.0, 0.3
_LEAST_LABEL = 20.0


class LayerBar(NamedTuple):
    """Errors as fractions (0.05: 5 %). `rounding`: with round-to-nearest, None where not measured;
    `tip`: details."""

    label: str
    error: float
    rounding: float | None = None
    tip: str = ""


class LayerChart(PaintedPlot):
    """Bars from the first layer to the last; layers still to come keep their place."""

    empty_text = "No layers quantized yet"

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Error per layer", parent=parent)
        self._bars: tuple[LayerBar, ...] = ()
        self._num_layers = 0

    @property
    def bars(self) -> tuple[LayerBar, ...]:
        return self._bars

    def show_bars(self, bars: Sequence[LayerBar], num_layers: int = 0) -> None:
        """`num_layers`: number of layers of the model."""
        self._bars, self._num_layers = tuple(bars), max(num_layers, len(bars))
        if self.pointed_index >= len(bars):
            self.point_at(NONE)
        self.setAccessibleDescription("; ".join(map(self.text, range(len(bars)))))
        self.update()

    def point_at(self, index: int) -> None:
        self.setToolTip(self.text(index) if index != NONE else "")
        super().point_at(index)

    def text(self, index: int) -> str:
        bar = self._bars[index]
        text = f"Layer {bar.label}: {100 * bar.error:.2f} %"
        if bar.rounding is not None:
            text = f"{text} (round-to-nearest: {100 * bar.rounding:.2f} %)"
        return f"{text}. {bar.tip}" if bar.tip else text

    def values_table(self) -> ValuesTable:
        """A row per layer; errors as fractions (0.05: 5 %)."""
        rows = tuple((bar.label, bar.error, bar.rounding, bar.tip) for bar in self._bars)
        return ValuesTable(("layer", "error", "round-to-nearest", "details"), rows, (0, 5, 5, 0))

    # Geometry ----------------------------------------------------------------------------------

    def _axis(self) -> Range:
        values = [bar.error for bar in self._bars]
        values += [bar.rounding for bar in self._bars if bar.rounding is not None]
        most = 100 * max(values, default=0.0)
        return Range(0.0, most * 1.08 or 1.0)

    def _plot(self) -> QRectF:
        left = self.pen.width("00.00") + SPACE_2
        bottom = self.line_height + SPACE_1
        width, height = self.width() - left - SPACE_2, self.height() - bottom - SPACE_2
        return QRectF(left, SPACE_2, max(1.0, width), max(1.0, height))

    def _pitch(self) -> float:
        return self._plot().width() / max(1, self._num_layers)

    @property
    def num_items(self) -> int:
        return len(self._bars)

    def item_at(self, position: QPointF) -> int:
        return self.bar_at(position.x())

    def bar_at(self, x: float) -> int:
        place = int((x - self._plot().left()) // self._pitch()) if self._num_layers else NONE
        return place if 0 <= place < len(self._bars) else NONE

    # Painting ----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._num_layers

    def paint(self, painter: QPainter) -> None:
        plot, axis = self._plot(), self._axis()
        marks = labelled_ticks(axis, plot.height(), _TICK_DISTANCE)
        paint_value_axis(painter, plot, axis, marks, self.pen.font)
        self._paint_bars(painter)

    def _paint_bars(self, painter: QPainter) -> None:
        table, plot, pitch = theme(), self._plot(), self._pitch()
        high, gap = self._axis().high / 100, pitch * _GAP if pitch > 4 else 1.0
        every = max(1, -(-int(_LEAST_LABEL) // max(1, int(pitch))))
        for index in range(self._num_layers):
            left = plot.left() + index * pitch
            width = min(_WIDEST, max(1.0, pitch - gap))
            slot = QRectF(left + (pitch - width) / 2, plot.top(), width, plot.height())
            if index < len(self._bars):
                self._paint_bar(painter, slot, self._bars[index], high)
                if index == self.pointed_index:
                    painter.setPen(table.color("text"))
                    painter.setBrush(Qt.BrushStyle.NoBrush)
                    painter.drawRect(slot.adjusted(-1.5, 0.5, 1.5, 0.5))
            if index % every == 0:
                label = self._bars[index].label if index < len(self._bars) else str(index)
                painter.setPen(table.color("text_muted"))
                below = QRectF(left - 40, plot.bottom() + 2, pitch + 80, self.height())
                below.setBottom(self.height())
                painter.drawText(below, Qt.AlignmentFlag.AlignHCenter, label)

    def _paint_bar(self, painter: QPainter, slot: QRectF, bar: LayerBar, high: float) -> None:
        table = theme()
        scale = slot.height() / high
        filled = slot.adjusted(0, slot.height() - max(1.0, bar.error * scale), 0, 0)
        painter.fillRect(filled, table.color(ERROR_COLOR))
        if bar.rounding is not None:
            y = round(slot.bottom() - bar.rounding * scale)
            painter.fillRect(QRectF(slot.left() - 1, y - 1, slot.width() + 2, 2),
                             table.color(ROUNDING_COLOR))  # fmt: skip
