"""tests.engine.evaluate"""
