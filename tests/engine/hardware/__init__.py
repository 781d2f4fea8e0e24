"""tests.engine.hardware"""
