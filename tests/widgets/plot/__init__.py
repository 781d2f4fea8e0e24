"""tests.widgets.plot"""
