"""Graphics items that pyqtgraph lacks in a sufficiently cheap form."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyqtgraph as pg
from pyqtgraph.functions import arrayToQPolygonF
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen, QPolygonF, QTransform

from widgets.plot.series import Floats


def _polygon(x: Floats, y: Floats) -> QPolygonF:
    return arrayToQPolygonF(x, y) if len(x) else QPolygonF()  # it refuses empty arrays


class _PaintedItem(pg.GraphicsObject):
    """An item in data coordinates; its bounds are the visible area.

    Points come with every redraw, after which the chart updates the whole view: an item that asked
    for an update too would have it painted twice."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = QRectF()

    def boundingRect(self) -> QRectF:
        return self._bounds

    def viewRangeChanged(self) -> None:
        self.prepareGeometryChange()
        view = self.getViewBox()
        self._bounds = QRectF() if view is None else QRectF(view.viewRect())


# Where the passes of a line go, in pixels: beside and below, so that flat and steep parts widen.
_PASSES = ((0.0, 0.0), (0.5, 0.5), (0.5, -0.5), (-0.5, 0.0))


class LineItem(_PaintedItem):
    """A line with gaps (NaN), antialiased, at a fraction of what a wide pen costs.

    Qt draws antialiased lines of one device pixel with a rasteriser of their own; wider ones go
    through a stroker that is 10 times slower on smooth data and 50 times on noise (measured: 5 ms
    for one noisy line of 240 points, 0.1 ms at one pixel). So a wider line is drawn in passes,
    half a pixel apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[QPolygonF] = []
        self._pen = QPen()
        self._weight = 1.0

    def set_style(self, color: QColor, weight: float, dashed: bool) -> None:
        """`weight`: line width in logical pixels."""
        self._pen = QPen(color, 1.0)
        self._pen.setCosmetic(True)
        if dashed:
            self._pen.setDashPattern([5, 3])
        self._weight = weight
        self.update()

    def set_points(self, x: Floats, y: Floats) -> None:
        gaps = np.flatnonzero(np.isnan(y))
        if not len(gaps):
            self._runs = [_polygon(x, y)] if len(x) else []
        else:
            edges = pairwise([-1, *gaps.tolist(), len(x)])
            runs = [slice(a + 1, b) for a, b in edges if b > a + 1]
            self._runs = [_polygon(x[run], y[run]) for run in runs]

    @property
    def num_points(self) -> int:
        return sum(run.size() for run in self._runs)

    def paint(self, painter: QPainter, *_: Any) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setPen(self._pen)
        place = painter.worldTransform()
        num_passes = round(self._weight * painter.device().devicePixelRatioF())
        for dx, dy in _PASSES[: max(num_passes, 1)]:
            painter.setWorldTransform(place * QTransform.fromTranslate(dx, dy))
            for run in self._runs:
                painter.drawPolyline(run)
        painter.setWorldTransform(place)


class DotsItem(_PaintedItem):
    """Samples as faint square dots, `size` logical pixels wide.

    Translucent points of more than one device pixel are slow as well (0.4 ms for 500): a dot is
    made of points of one pixel, side by side (0.01 ms for 500).
    """

    def __init__(self, size: float = 2.0) -> None:
        super().__init__()
        self._points = QPolygonF()
        self._pen = QPen()
        self.size = size

    def set_color(self, color: QColor) -> None:
        self._pen = QPen(color, 1.0)
        self._pen.setCosmetic(True)
        self.update()

    def set_points(self, x: Floats, y: Floats) -> None:
        self._points = _polygon(x, y)

    @property
    def num_points(self) -> int:
        return int(self._points.size())

    def paint(self, painter: QPainter, *_: Any) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        if self._points.isEmpty():
            return
        painter.setPen(self._pen)
        place, ratio = painter.worldTransform(), painter.device().devicePixelRatioF()
        for dx, dy in self._shape(ratio):
            painter.setWorldTransform(place * QTransform.fromTranslate(dx / ratio, dy / ratio))
            painter.drawPoints(self._points)
        painter.setWorldTransform(place)

    def _shape(self, ratio: float) -> Iterable[tuple[int, int]]:
        """The device pixels of a dot."""
        side = range(max(round(self.size * ratio), 1))
        return product(side, side)


class PeaksItem(DotsItem):
    """Triangles that point up from the end of the axis: samples above it."""

    def _shape(self, ratio: float) -> Iterable[tuple[int, int]]:
        rows = max(round(2 * self.size * ratio), 1)
        return ((dx, row) for row in range(rows) for dx in range(-row, row + 1))


class AreaItem(_PaintedItem):
    """The band between two lines over the same times."""

    def __init__(self) -> None:
        super().__init__()
        self._polygon = QPolygonF()
        self._edge = QPolygonF()
        self._brush = QBrush()
        self._pen = QPen()

    def set_colors(self, fill: QColor, edge: QColor) -> None:
        self._brush = QBrush(fill)
        self._pen = QPen(edge, 1.0)
        self._pen.setCosmetic(True)
        self.update()

    def set_band(self, x: Floats, low: Floats, high: Floats) -> None:
        """Arrays of equal length; the edge is drawn along `high`."""
        self._polygon = _polygon(np.concatenate((x, x[::-1])), np.concatenate((high, low[::-1])))
        self._edge = _polygon(x, high)

    @property
    def num_points(self) -> int:
        return int(self._edge.size())

    def paint(self, painter: QPainter, *_: Any) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._brush)
        painter.drawPolygon(self._polygon)
        painter.setPen(self._pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolyline(self._edge)
