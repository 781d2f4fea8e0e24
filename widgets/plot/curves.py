"""`Curves`: the lines and samples of a time chart as items of its view box."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyqtgraph as pg
from PySide6.QtGui import QColor

from widgets.plot.axis import Range
from widgets.plot.data import NOTHING
from widgets.plot.items import DotsItem, LineItem, PeaksItem
from widgets.plot.series import Floats, Series, SeriesKind
from widgets.theme.theme import theme

_DOT_ALPHA = 0.45
_NUM_PEAKS = 150  # most triangles at the end of the axis: one for each few pixels

Points = tuple[Floats, Floats]
"""Times relative to the right edge, and values."""


class Curves:
    """`lines` and `dots` by the keys of their series, samples behind lines. Samples beyond the axis
    are triangles at its end (`peaks`)."""

    def __init__(self, series: Iterable[Series], box: pg.ViewBox) -> None:
        self._series: dict[str, Series] = {}
        self.lines: dict[str, LineItem] = {}
        self.dots: dict[str, DotsItem] = {}
        self.peaks = PeaksItem()
        for z, one in enumerate(series):
            item: LineItem | DotsItem
            if one.kind is SeriesKind.DOTS:
                item = self.dots[one.key] = DotsItem()
            elif one.kind is not SeriesKind.AREA:
                item = self.lines[one.key] = LineItem()
            else:
                continue
            self._series[one.key] = one
            item.setZValue(z - (100 if one.kind is SeriesKind.DOTS else 0))
            box.addItem(item, ignoreBounds=True)
        box.addItem(self.peaks, ignoreBounds=True)

    def restyle(self) -> None:
        """Use the colours of the current theme."""
        table = theme()
        for key, line in self.lines.items():
            one = self._series[key]
            line.set_style(QColor(table.line_color(one.color)), one.width, one.dashed)
        for key, dots in self.dots.items():
            dots.set_color(table.color(self._series[key].color, _DOT_ALPHA))
        self.peaks.set_color(table.color("text_muted"))

    def place(
        self, lines: Mapping[str, Points], clouds: Mapping[str, Points], shown: Range, length: float
    ) -> bool:
        """Draw what is given on the axis `shown` and `length` seconds; the rest is hidden. Returns
        whether samples lie above the axis."""
        for key, line in self.lines.items():
            x, y = lines.get(key, (NOTHING, NOTHING))
            line.set_points(x, shown.drawn(y))
        peaks = [NOTHING]
        for key, dots in self.dots.items():
            x, y = clouds.get(key, (NOTHING, NOTHING))
            is_inside = y <= shown.high
            if not is_inside.all():
                peaks.append(x[~is_inside])
                x, y = x[is_inside], y[is_inside]
            dots.set_points(x, shown.drawn(y))
        if len(peaks) == 1:
            self.peaks.set_points(NOTHING, NOTHING)
            return False
        step = length / _NUM_PEAKS
        at = np.unique(np.round(np.concatenate(peaks) / step)) * step
        self.peaks.set_points(at, np.full(len(at), shown.ends[1]))
        return True

    def num_points(self) -> dict[str, int]:
        """Drawn points of each series."""
        return {key: item.num_points for key, item in (self.lines | self.dots).items()}
