"""tests.app.clients"""
