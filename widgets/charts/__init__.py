"""Live charts on pyqtgraph: bounded history, decimated drawing, one clock with a budget."""

from widgets.charts.clock import RedrawClock
from widgets.charts.latency_chart import LatencyChart
from widgets.charts.series import Series, SeriesKind
from widgets.charts.stacked_area import StackedAreaChart
from widgets.charts.time_chart import TimeChart

__all__ = ["LatencyChart", "RedrawClock", "Series", "SeriesKind", "StackedAreaChart", "TimeChart"]
