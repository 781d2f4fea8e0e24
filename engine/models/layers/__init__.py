"""Replacements for a model's modules: fewer and larger operations, the same numbers."""
