"""Replacements for modules of transformers: fewer and larger operations, the same numbers."""
