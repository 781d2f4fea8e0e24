"""Reusable Qt widgets. They know plain snapshots (engine.snapshot) and no engine."""
