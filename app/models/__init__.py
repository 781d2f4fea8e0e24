"""Choosing a model: where models are found, what one would need, and the dialog."""
