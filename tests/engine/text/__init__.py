"""tests.engine.text"""
