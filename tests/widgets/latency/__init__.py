"""tests.widgets.latency"""
