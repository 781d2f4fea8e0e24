"""`LatencyRow`: inter-token latency above the timeline, on its axis."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyqtgraph.functions import arrayToQPolygonF
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize
from PySide6.QtGui import QFont, QMouseEvent, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from engine.units import duration_text
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme
from widgets.timeline.view import TimelineView

HEIGHT = 72
_DOT = 3.0
_SECOND_PASS = (0.5, 0.5)


class LatencyRow(PaintedPlot):
    """The mean time between output tokens of each visible step as a line, the longest as a dot.
    Items are steps, as in `timeline`: both point at the same one."""

    least = QSize(120, HEIGHT)

    def __init__(self, timeline: TimelineView, parent: QWidget | None = None) -> None:
        super().__init__("ITL per step", parent=parent)
        self._timeline = timeline
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(scaled(HEIGHT))
        timeline.moved.connect(self.update)
        timeline.pointed.connect(lambda ordinal: self.point_at(ordinal))
        timeline.chosen.connect(lambda ordinal: self.update())
        self.pointed.connect(timeline.point_at)

    def text_font(self) -> QFont:
        return figure_font("small")

    def apply_theme(self) -> None:
        self.setFixedHeight(scaled(HEIGHT))
        super().apply_theme()

    def values_table(self) -> ValuesTable:
        """Milliseconds, newest step first."""
        scene, history = self._timeline.scene, self._timeline.history
        headers = ("step", "mean ITL (ms)", "longest ITL (ms)")
        if scene is None:
            return ValuesTable(headers, (), (0, 2, 2))
        steps = range(scene.start, scene.end)
        found = zip(steps, *history.gaps(scene.start, scene.end), strict=True)
        rows = tuple(
            (history.record(step).index, *(None if np.isnan(x) else 1e3 * float(x) for x in gaps))
            for step, *gaps in found
        )
        return ValuesTable(headers, rows[::-1], (0, 2, 2))

    # Drawing -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        scene, table = self._timeline.scene, theme()
        if scene is None:
            return
        mean, longest = self._timeline.history.gaps(scene.start, scene.end)
        known = longest[~np.isnan(longest)]
        top = float(known.max()) if len(known) else 0.0
        area = self._area()
        painter.setPen(table.color("axis"))
        painter.drawLine(QPointF(area.left(), area.bottom()), QPointF(area.right(), area.bottom()))
        self._paint_axis(painter, area, top)
        if not top:
            return
        x = self._timeline.left(scene) + (np.arange(len(mean)) + 0.5) * self._timeline.pitch
        height = lambda values: area.bottom() - values / top * area.height()
        painter.setPen(QPen(table.color("p99"), _DOT))
        painter.drawPoints(_points(x, height(longest)))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(table.color("p50"), 1.0))
        for part in _unbroken(x, height(mean)):
            painter.drawPolyline(part)  # twice: a wide pen costs ten times as much
            painter.drawPolyline(part.translated(*_SECOND_PASS))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for ordinal in (self._timeline.chosen_index, self.pointed_index):
            if scene.start <= ordinal < scene.end:
                painter.setPen(QPen(table.color("accent"), 1))
                at = round(x[ordinal - scene.start])
                painter.drawLine(QPointF(at, area.top()), QPointF(at, self.height()))

    def _paint_axis(self, painter: QPainter, area: QRectF, top: float) -> None:
        width = self._timeline.label_width - SPACE_2
        line = self.line_height
        rows = (("ITL per step", "text", 0.0), *(
            [(f"max {duration_text(top)}", "text_muted", line),
             ("0", "text_muted", area.bottom() - line / 2)] if top else []
        ))  # fmt: skip
        for text, color, y in rows:
            painter.setPen(theme().color(color))
            self.pen.right(painter, QRectF(0, y, width, line), self.pen.elided(text, width))

    def _area(self) -> QRectF:
        left = self._timeline.label_width
        right = self._timeline.bar.sizeHint().width()
        margin = SPACE_1 + _DOT
        return QRectF(left, margin, self.width() - left - right, self.height() - 2 * margin)

    # Mouse -------------------------------------------------------------------------------------

    def item_at(self, position: QPointF) -> int:
        return self._timeline.item_at(position)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._timeline.choose(self.item_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._timeline.point_at(NONE)


def _points(x: NDArray[np.floating], y: NDArray[np.floating]) -> QPolygonF:
    known = ~np.isnan(y)
    return arrayToQPolygonF(x[known], y[known]) if known.any() else QPolygonF()


def _unbroken(x: NDArray[np.floating], y: NDArray[np.floating]) -> list[QPolygonF]:
    """The line, without the steps that have no value."""
    known = np.flatnonzero(~np.isnan(y))
    parts = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
    return [_points(x[part], y[part]) for part in parts if len(part)]
