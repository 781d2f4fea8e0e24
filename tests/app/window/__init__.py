"""tests.app.window"""
