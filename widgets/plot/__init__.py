"""Plots: pyqtgraph time charts and painted charts on one base.

    series, data, clock, text, table            values, drawing budget, table of values
    painted                                     Plot, PaintedPlot: menu, T, hover, keys, theme
    axis, items, curves, labels, mark_strip     parts of a time chart
    plot_view, overlay, header, chart_menu
    link, marks, time_view                      time: shared cursor, zoom, marks, ranges
    time_chart, stacked_chart, parts_bar
"""
