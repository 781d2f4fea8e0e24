"""tests.engine.formats"""
