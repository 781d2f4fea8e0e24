"""tests.app.features.chat"""
