"""tests.app.features.models"""
