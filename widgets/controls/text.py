"""Durations as people read them. No Qt."""

from __future__ import annotations

import time

from engine.snapshot import EngineSnapshot, Part


def milliseconds(value: float) -> str:
    """`value` milliseconds with their unit and three significant digits or so; from ten seconds
    on in s."""
    return f"{value / 1e3:,.1f} s" if value >= 10_000 else f"{_number(value)} ms"


def _number(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" if value < 0.995 else f"{value:.1f}"


PLAIN = "OpenAI-compatible"
"""In place of a device: the server of a model says nothing of its make."""


def teller(device: str) -> str:
    """Who tells, or does not: "vLLM", "this server"."""
    return "this server" if device in ("", PLAIN) else device


def untold(snapshot: EngineSnapshot, *parts: Part) -> str:
    """ "not told by vLLM" where none of `parts` is told, "" where one is."""
    if not parts or not snapshot.missing.issuperset(parts):
        return ""
    return f"not told by {teller(snapshot.model.device)}"


def untold_text(snapshot: EngineSnapshot, what: str, *parts: Part, instead: str = "") -> str:
    """A sentence for an empty view: "KV blocks: not told by vLLM." and what can be done instead."""
    words = untold(snapshot, *parts)
    return f"{what}: {words}. {instead}".strip() if words else ""


class EngineTime:
    """The engine's clock as the charts need it: its last time, running on by ours.

    Snapshots carry the engine's own times; what passes since the newest came is measured here, at
    `speed` times the pace of our clock (other than 1 for a recording that is replayed, and 0 while
    it stands still).
    """

    def __init__(self) -> None:
        self._speed = 1.0
        self._at = self._since = time.perf_counter()

    def synchronise(self, engine_time: float) -> None:
        self._at, self._since = engine_time, time.perf_counter()

    def set_speed(self, speed: float) -> None:
        """From now on."""
        self.synchronise(self.now())
        self._speed = speed

    def now(self) -> float:
        return self._at + (time.perf_counter() - self._since) * self._speed
