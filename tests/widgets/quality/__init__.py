"""tests.widgets.quality"""
