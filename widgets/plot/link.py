"""What charts share: `LinkedCursor`, and `ChartGroup` with the zoom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal

from widgets.plot.table import ValuesTable, join_columns

if TYPE_CHECKING:
    from widgets.plot.time_view import TimeView

LEAST_ZOOM_S = 0.2


class LinkedCursor(QObject):
    """The time that several views point at together.

    `time`: seconds on the engine's clock, None for nowhere. `source`: the view with the pointer;
    the others draw their cross-line at `time`."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.time: float | None = None
        self.source: object = None

    def point(self, time: float, source: object) -> None:
        if time != self.time or source is not self.source:
            self.time, self.source = time, source
            self.changed.emit()

    def leave(self, source: object) -> None:
        """Point nowhere, unless another view has the pointer by now."""
        if source is self.source:
            self.time = self.source = None
            self.changed.emit()


class Zoom(NamedTuple):
    """From `start` to `end` on the engine's clock. `now`: when it was chosen; the time axis counts
    from there."""

    start: float
    end: float
    now: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class ChartGroup(QObject):
    """Charts with a common cursor and zoom."""

    zoomed = Signal()

    def __init__(self, cursor: LinkedCursor | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.cursor = cursor or LinkedCursor(self)
        self.charts: list[TimeView] = []
        self.zoom: Zoom | None = None

    def zoom_to(self, start: float, end: float, now: float) -> None:
        """Show this range in every chart; too short a range is widened around its middle."""
        least = max(LEAST_ZOOM_S - (end - start), 0.0) / 2
        before = self.zoom
        self.zoom = Zoom(start - least, end + least, before.now if before else now)
        self.zoomed.emit()

    def values_table(self, only: TimeView | None = None) -> ValuesTable:
        """All stored values of the charts, or of one, or those of the zoomed range. One row per
        time, in seconds relative to now."""
        start, end = (self.zoom.start, self.zoom.end) if self.zoom else (-math.inf, math.inf)
        columns = [
            column if only else column._replace(header=f"{chart.title}: {column.header}")
            for chart in ([only] if only else self.charts)
            for column in chart.columns(start, end)
        ]
        now = self.zoom.now if self.zoom else (only or self.charts[0]).now
        return join_columns("time (s)", columns, now)

    def zoom_out(self) -> None:
        """Follow the newest values again."""
        if self.zoom is not None:
            self.zoom = None
            self.zoomed.emit()
