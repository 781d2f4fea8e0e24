"""tests.app.storage"""
