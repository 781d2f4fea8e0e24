"""tests.engine.step"""
