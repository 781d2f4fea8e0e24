"""tests.engine.simulate"""
