"""The engine's settings, a background load, and two ranges of time compared."""
