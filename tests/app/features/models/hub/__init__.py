"""tests.app.features.models.hub"""
