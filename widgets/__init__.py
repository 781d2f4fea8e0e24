"""Reusable Qt widgets. They read plain snapshots (engine.snapshot) and know no engine."""
