"""tests.app.features.serve"""
