"""Live charts on pyqtgraph: bounded history, decimated drawing, one clock with a budget."""

from widgets.plot.clock import RedrawClock
from widgets.plot.latency_chart import LatencyChart
from widgets.plot.series import Series, SeriesKind
from widgets.plot.stacked_area import StackedAreaChart
from widgets.plot.time_chart import TimeChart

__all__ = ["LatencyChart", "RedrawClock", "Series", "SeriesKind", "StackedAreaChart", "TimeChart"]
