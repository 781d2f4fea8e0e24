"""Speculative decoding on the screen: what was drafted, what stood, and what it gained."""
