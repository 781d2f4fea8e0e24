"""Values and changes of settings, as the panel and the charts' marks say them. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.units import format_bytes
from engine.config import SETTINGS, EngineConfig

Differences = Mapping[str, tuple[Any, Any]]


def short(value: Any) -> str:
    """A value as a person would write it in a sentence."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**20:
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def change_text(changes: Differences) -> str:
    """ "Running requests 8 → 16"."""
    return ", ".join(
        f"{SETTINGS[n].label} {short(before)} → {short(now)}"
        for n, (before, now) in changes.items()
    )


def change_details(changes: Differences) -> tuple[str, ...]:
    """The same in the settings' own words, a line each."""
    return tuple(f"{SETTINGS[n].label}: {short(a)} → {short(b)}" for n, (a, b) in changes.items())


def way(where: str, stack: list[Mapping[str, Any]]) -> str:
    """Where the newest entry of a history leads; empty where there is none."""
    if not stack:
        return ""
    return where + ", ".join(f"{SETTINGS[n].label} {short(v)}" for n, v in stack[-1].items())


def resolved(applied: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """`applied` with `changes`, what the engine chose by itself left as it came out."""
    known = {name: value for name, value in changes.items() if (name, value) != ("dtype", "auto")}
    return applied.replace(**known)
