"""tests.widgets.requests"""
