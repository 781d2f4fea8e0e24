"""tests.app.features.preferences"""
