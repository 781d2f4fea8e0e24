"""tests.widgets.live"""
