"""tests.app.features.tune"""
