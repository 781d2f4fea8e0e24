"""A step as tensors: packed, ragged, and copied to the device without blocking."""
