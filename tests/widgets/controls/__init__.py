"""tests.widgets.controls"""
