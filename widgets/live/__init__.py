"""Live figures of the engine.

    metric_store         the one source of measured figures
    history, statistics, totals, trends     its parts
    figures              values and texts of the header
    strip                the header, at the top of the window
    store_charts, charts charts of latency and rate; the grid of all time charts
"""
