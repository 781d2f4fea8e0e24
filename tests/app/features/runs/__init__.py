"""tests.app.features.runs"""
