"""tests.app.features.recording"""
