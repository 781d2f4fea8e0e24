"""tests.app.main"""
