"""tests.engine.numerics"""
