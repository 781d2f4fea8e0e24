"""Replacements for transformers modules: fewer and larger operations, the same results."""
