"""`LayerChart`: the error of every layer as a bar, with plain rounding's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.plot.menu import offer_values, paint_focus
from widgets.plot.series import Range, round_step, tick_text, ticks
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme, theme_notifier, ui_font

NONE = -1
ERROR_COLOR, ROUNDING_COLOR = "accent", "text_muted"
_TICK_DISTANCE = 28
_WIDEST, _GAP = 40.0, 0.3
_LEAST_LABEL = 20.0


class LayerBar(NamedTuple):
    """Shares (0.05: five percent). `rounding` is plain rounding's, None where nothing was compared
    with it; `tip`: more, in words."""

    label: str
    error: float
    rounding: float | None = None
    tip: str = ""


class LayerChart(QWidget):
    """Bars from the first layer to the last; room is kept for those to come. `pointed(index)`:
    the bar under the mouse or the keyboard's cursor, -1 for none."""

    pointed = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bars: tuple[LayerBar, ...] = ()
        self._num_layers = 0
        self.pointed_bar = NONE
        self.setMouseTracking(True)
        self.setAccessibleName("Error of every layer")
        offer_values(self)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        theme_notifier().changed.connect(self.update)

    @property
    def bars(self) -> tuple[LayerBar, ...]:
        return self._bars

    def show_bars(self, bars: Sequence[LayerBar], num_layers: int = 0) -> None:
        """`num_layers`: how many there will be."""
        self._bars, self._num_layers = tuple(bars), max(num_layers, len(bars))
        if self.pointed_bar >= len(bars):
            self.point_at(NONE)
        self.setAccessibleDescription("; ".join(map(self._words, range(len(bars)))))
        self.update()

    def point_at(self, index: int) -> None:
        if index != self.pointed_bar:
            self.pointed_bar = index
            self.setToolTip(self._words(index) if index != NONE else "")
            self.pointed.emit(index)
            self.update()

    def text(self, index: int) -> str:
        """What the bar says."""
        return self._words(index)

    def _words(self, index: int) -> str:
        bar = self._bars[index]
        words = f"Layer {bar.label}: {100 * bar.error:.2f} %"
        if bar.rounding is not None:
            words += f", plain rounding {100 * bar.rounding:.2f} %"
        return f"{words}. {bar.tip}" if bar.tip else words

    @property
    def title(self) -> str:
        return self.accessibleName()

    def values_table(self) -> ValuesTable:
        """A row per layer; shares as they are (0.05: five percent)."""
        rows = tuple((bar.label, bar.error, bar.rounding, bar.tip) for bar in self._bars)
        return ValuesTable(("layer", "error", "plain rounding", "more"), rows, (0, 5, 5, 0))

    # Geometry ----------------------------------------------------------------------------------

    def sizeHint(self) -> QSize:
        return QSize(420, 180)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, 120)

    def _axis(self) -> Range:
        values = [bar.error for bar in self._bars]
        values += [bar.rounding for bar in self._bars if bar.rounding is not None]
        most = 100 * max(values, default=0.0)
        return Range(0.0, most * 1.08 or 1.0)

    def _plot(self) -> QRectF:
        metrics = QFontMetricsF(figure_font("small"))
        left = metrics.horizontalAdvance("00.00") + SPACE_2
        bottom = metrics.height() + SPACE_1
        width, height = self.width() - left - SPACE_2, self.height() - bottom - SPACE_2
        return QRectF(left, SPACE_2, max(1.0, width), max(1.0, height))

    def _pitch(self) -> float:
        return self._plot().width() / max(1, self._num_layers)

    def bar_at(self, x: float) -> int:
        place = int((x - self._plot().left()) // self._pitch()) if self._num_layers else NONE
        return place if 0 <= place < len(self._bars) else NONE

    # Painting ----------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(figure_font("small"))
        if self._num_layers:
            self._paint_axis(painter)
            self._paint_bars(painter)
        else:
            painter.setFont(ui_font("small"))
            painter.setPen(theme().color("text_muted"))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, "No layer is done yet")
        paint_focus(painter, self)
        painter.end()

    def _paint_axis(self, painter: QPainter) -> None:
        table, plot, axis = theme(), self._plot(), self._axis()
        metrics = QFontMetricsF(figure_font("small"))
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        most = max(int(plot.height() / _TICK_DISTANCE), 2)
        step = round_step(axis.span, most)
        for value in ticks(axis, most):
            y = round(plot.bottom() - value / axis.high * plot.height())
            painter.setPen(table.color("axis" if value == 0 else "grid"))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(table.color("text_muted"))
            place = QRectF(0, y - metrics.height() / 2, plot.left() - 6, metrics.height())
            painter.drawText(place, right, tick_text(value, step))

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
                if index == self.pointed_bar:
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

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.point_at(self.bar_at(event.position().x()))

    def leaveEvent(self, event: QEvent) -> None:
        self.point_at(NONE)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        here, last = self.pointed_bar, len(self._bars) - 1
        steps = {
            Qt.Key.Key_Left: max(0, here - 1),
            Qt.Key.Key_Right: min(last, here + 1),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
        }
        key = Qt.Key(event.key())
        if key in steps and last >= 0:
            self.point_at(steps[key])
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QEvent) -> None:
        self.update()

    def focusOutEvent(self, event: QEvent) -> None:
        self.update()
