"""tests.app.wire"""
