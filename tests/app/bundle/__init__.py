"""tests.app.bundle"""
