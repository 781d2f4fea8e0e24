"""tests.app.features.quantize"""
