"""The Bench page: a workload at several loads or settings, with latency goals.

    engine       the window's engine as `app.bench` runs it, from a thread
    controller   starts, cancels and keeps a sweep, and puts settings back
    page         choices, goals, table and charts
"""
