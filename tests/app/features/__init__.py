"""tests.app.features"""
