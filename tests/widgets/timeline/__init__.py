"""tests.widgets.timeline"""
