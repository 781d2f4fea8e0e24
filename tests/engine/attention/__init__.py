"""tests.engine.attention"""
