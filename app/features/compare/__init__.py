"""Replies compared: two sides, or one prompt to many conversations."""
