"""`LatencyChart`: the way to the first token as a strip, every gap after it as a bar."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.charts.menu import offer_values, paint_focus
from widgets.charts.table import ValuesTable
from widgets.charts.text import TextPen
from widgets.latency.reply import Cause, ReplyLatency, Stage
from widgets.latency.table import latency_table
from widgets.latency.words import duration
from widgets.theme import SPACE_1, SPACE_2, theme, theme_notifier, ui_font

NONE = -1
STAGE_COLORS = {Stage.QUEUE: "queued", Stage.PREFILL: "prefill", Stage.WAIT: "waiting"}
CAUSE_COLORS = {
    Cause.NONE: "decode",
    Cause.PREFILL: "prefill",
    Cause.PREEMPTED: "preempted",
    Cause.BETWEEN: "queued",
    Cause.BATCH: "running",
    Cause.UNKNOWN: "p99",
}
_STRIP_HEIGHT = 18
_WIDEST_BAR = 14
_PAD = 4  # between the frame of the focus and what is drawn
_LEAST_STRETCH = 2  # pixels: what took place is seen


class LatencyChart(QWidget):
    """`pointed(index of the gap)`, -1 for none: under the mouse or the keyboard's cursor."""

    pointed = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._latency: ReplyLatency | None = None
        self._causes: list[Cause] = []
        self.pointed_gap = NONE
        self._pen = TextPen(ui_font("small"))
        self.setMouseTracking(True)
        self.setAccessibleName("Latency of the reply: the first token, then every gap")
        offer_values(self)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        theme_notifier().changed.connect(self._theme_changed)

    @property
    def title(self) -> str:
        return "Latency of the reply"

    def values_table(self) -> ValuesTable:
        """The way to the first token and every gap."""
        return latency_table(self._latency)

    def show_latency(self, latency: ReplyLatency) -> None:
        """Show another reply; the slowest gap that has a cause is pointed at."""
        self._latency = latency
        self._causes = [latency.cause(gap) for gap in latency.gaps]
        slow = latency.slow_gaps
        self.pointed_gap = NONE
        self.point_at(latency.gaps.index(slow[0]) if slow else NONE)
        self.update()

    def point_at(self, index: int) -> None:
        if index != self.pointed_gap:
            self.pointed_gap = index
            self.pointed.emit(index)
            self.update()

    # Geometry ----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Pixels from the first bar to the last."""
        return max(1, self.width() - 2 * _PAD)

    def _bars_rect(self) -> QRectF:
        top = _STRIP_HEIGHT + self._pen_height() + SPACE_2
        return QRectF(0, top, self._room, max(0, self.height() - 2 * _PAD - top))

    def _pen_height(self) -> int:
        return self.fontMetrics().height() + SPACE_1

    @property
    def _per_bar(self) -> int:
        """Gaps that share a bar: 1 unless there are more than pixels for two each."""
        count = len(self._causes)
        return max(1, -(-count * 2 // self._room))

    @property
    def _bar_width(self) -> float:
        bars = -(-len(self._causes) // self._per_bar)
        return min(float(_WIDEST_BAR), self._room / max(1, bars))

    def gap_at(self, x: float) -> int:
        """The longest gap of the bar at `x`, or NONE."""
        x -= _PAD
        if self._latency is None or not self._causes or x < 0:
            return NONE
        first = int(x // self._bar_width) * self._per_bar
        group = self._latency.gaps[first : first + self._per_bar]
        if not group:
            return NONE
        lengths = [gap.seconds for gap in group]
        return first + lengths.index(max(lengths))

    def sizeHint(self) -> QSize:
        return QSize(560, 180)

    def minimumSizeHint(self) -> QSize:
        return QSize(200, 120)

    # Painting ----------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self._pen.use(painter)
        if self._latency is not None:
            painter.translate(_PAD, _PAD)
            self._paint_strip(painter, self._latency)
            self._paint_bars(painter, self._latency)
            painter.resetTransform()
        paint_focus(painter, self)
        painter.end()

    def _paint_strip(self, painter: QPainter, latency: ReplyLatency) -> None:
        """The stretches to the first token, over the whole width."""
        if not latency.stretches or latency.ttft_s <= 0:
            return
        scale = self._room / latency.ttft_s
        painter.setPen(Qt.PenStyle.NoPen)
        for stretch in latency.stretches:
            left = min(stretch.start * scale, self._room - _LEAST_STRETCH)
            width = max(stretch.seconds * scale - 1, _LEAST_STRETCH)
            color = QColor(theme().value(STAGE_COLORS[stretch.stage]))
            painter.setBrush(color)
            painter.drawRect(QRectF(left, 0, width, _STRIP_HEIGHT))

    def _paint_bars(self, painter: QPainter, latency: ReplyLatency) -> None:
        if not latency.gaps:
            return
        area, table, per_bar = self._bars_rect(), theme(), self._per_bar
        lengths = np.array([gap.seconds for gap in latency.gaps])
        longest = float(lengths.max()) or 1.0
        scale, width = area.height() / longest, self._bar_width
        space = 1.0 if width >= 4 else 0.0
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for place, first in enumerate(range(0, len(lengths), per_bar)):
            group = lengths[first : first + per_bar]
            index = first + int(group.argmax())
            height = max(1.0, float(lengths[index]) * scale)
            color = QColor(table.value(CAUSE_COLORS[self._causes[index]]))
            bar = QRectF(place * width, area.bottom() - height, width - space, height)
            painter.fillRect(bar, color)
            if first <= self.pointed_gap < first + per_bar:
                painter.setPen(QPen(table.color("text"), 1))
                painter.drawRect(bar.adjusted(-0.5, -0.5, 0.5, -0.5))
        usual = area.bottom() - latency.usual_s * scale
        painter.setPen(QPen(table.color("text_muted"), 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(0, usual), QPointF(self._room, usual))
        caption = QRectF(0, _STRIP_HEIGHT + SPACE_1, self._room, self._pen_height())
        painter.setPen(table.color("text_muted"))
        text = f"gaps, up to {duration(longest)}; dashed: the median"
        self._pen.left(painter, caption, self._pen.elided(text, self._room))

    def _theme_changed(self) -> None:
        self._pen = TextPen(ui_font("small"))
        self.update()

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self.gap_at(event.position().x())
        if index != NONE:  # beside the bars: what was said stays
            self.point_at(index)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, last = Qt.Key(event.key()), len(self._causes) - 1
        here = self.pointed_gap
        steps = {
            Qt.Key.Key_Left: max(0, here - 1),
            Qt.Key.Key_Right: min(last, here + 1),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
        }
        if key in steps and last >= 0:
            self.point_at(steps[key])
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        self.update()
