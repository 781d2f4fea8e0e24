"""tests.engine.quantize"""
