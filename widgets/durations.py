"""Durations as people read them. No Qt."""

from __future__ import annotations


def milliseconds(value: float) -> str:
    """`value` milliseconds with their unit and three significant digits or so; from ten seconds
    on in s."""
    return f"{value / 1e3:,.1f} s" if value >= 10_000 else f"{_number(value)} ms"


def _number(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" if value < 0.995 else f"{value:.1f}"
