"""tests.app.features.compare"""
