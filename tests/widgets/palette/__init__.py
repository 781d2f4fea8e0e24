"""tests.widgets.palette"""
