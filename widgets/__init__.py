"""Reusable Qt widgets. They read plain snapshots (engine.snapshot), write figures
with engine.units, and know no engine."""
