"""A line without axes, as high as a letter: how a figure went."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

from widgets.charts.ring import Floats


def draw_sparkline(
    painter: QPainter, rect: QRectF, places: Floats, values: Floats, top: float, color: QColor
) -> None:
    """`values` at `places` (0 to 1, from left to right); the lower edge is zero, the upper one
    `top`, or the largest value where that is larger. NaN is a gap."""
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return  # a dot says nothing
    highest = max(top, float(known.max()))
    scale = rect.height() / highest if highest > 0 else 0.0
    xs = rect.left() + places * rect.width()
    ys = rect.bottom() - values * scale
    painter.setPen(QPen(color, 1.0))
    gaps = np.flatnonzero(np.isnan(values)).tolist()
    for before, after in pairwise([-1, *gaps, len(values)]):
        run = slice(before + 1, after)
        points = [QPointF(x, y) for x, y in zip(xs[run].tolist(), ys[run].tolist(), strict=True)]
        if len(points) > 1:
            painter.drawPolyline(QPolygonF(points))
        elif points:
            painter.drawPoint(points[0])
