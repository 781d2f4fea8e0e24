"""tests.engine.snapshot"""
