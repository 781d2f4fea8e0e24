"""Where a step's time and the memory go, and the program's log.

step_breakdown, memory_breakdown      the figures (no Qt)
bottleneck, what_if_table             the time of a step; what a setting may gain
memory_view, log_view, engine_views   memory, log, and the docks with the engine's views
"""
