"""The step timeline.

    history (steps and spans), picture (pixels), table (text)
    view (widget), latency_row (above it), panel
"""
