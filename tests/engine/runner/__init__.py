"""tests.engine.runner"""
