"""tests.widgets.theme"""
