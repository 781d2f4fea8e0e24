"""Words for what an engine elsewhere does not tell: the same ones in every view."""

from __future__ import annotations

from engine.snapshot import EngineSnapshot, Part

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
