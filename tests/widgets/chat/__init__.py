"""tests.widgets.chat"""
