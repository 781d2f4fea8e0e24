"""Speculative decoding: speed-up and acceptance."""
