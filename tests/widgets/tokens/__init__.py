"""tests.widgets.tokens"""
