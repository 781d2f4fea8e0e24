"""Lengths of time as people say them. No Qt."""

from __future__ import annotations


def elapsed(seconds: float) -> str:
    """ "0:07", "12:30", "1:02:03"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def about(seconds: float) -> str:
    """ "a few seconds", "about 40 s", "about 3 min", "about 2 h 10 min"."""
    if seconds < 8:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds / 10) * 10 or 10} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"


def left(seconds: float | None) -> str:
    """ "about 40 s left"; empty where nobody can tell."""
    return "" if seconds is None else f"{about(seconds)} left"
