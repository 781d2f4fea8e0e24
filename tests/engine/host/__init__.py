"""tests.engine.host"""
