"""Plots: pyqtgraph time charts and painted charts on one base.

    series, data, clock, text, table          values, drawing budget, table of values
    painted                                   Plot and PaintedPlot: menu, T, hover, keys, theme
    items, marks, overlay, plot_view, header  parts of a time chart
    time_chart, latency_chart, token_rate_chart, stacked_area, parts_bar
"""

from widgets.plot.clock import RedrawClock
from widgets.plot.latency_chart import LatencyChart
from widgets.plot.series import Series, SeriesKind
from widgets.plot.stacked_area import StackedAreaChart
from widgets.plot.time_chart import TimeChart

__all__ = ["LatencyChart", "RedrawClock", "Series", "SeriesKind", "StackedAreaChart", "TimeChart"]
