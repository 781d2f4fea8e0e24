"""tests.app.link"""
