"""tests.engine.sampling"""
