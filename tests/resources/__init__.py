"""tests.resources"""
