"""tests.engine.memory"""
