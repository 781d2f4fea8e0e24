"""Recordings of the engine's steps, and what is kept for a crash."""
