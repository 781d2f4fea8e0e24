"""tests.app.desktop"""
