"""tests.engine.scheduling"""
