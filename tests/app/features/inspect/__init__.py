"""tests.app.features.inspect"""
