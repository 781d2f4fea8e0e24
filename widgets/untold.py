"""Words for what an engine elsewhere does not tell: the same ones in every view."""

from __future__ import annotations

from engine.snapshot import EngineSnapshot, Part


def untold(snapshot: EngineSnapshot, *parts: Part) -> str:
    """ "not told by vLLM" where none of `parts` is told, "" where one is."""
    if not parts or not snapshot.missing.issuperset(parts):
        return ""
    return f"not told by {snapshot.model.device or 'this server'}"


def untold_text(snapshot: EngineSnapshot, what: str, *parts: Part, instead: str = "") -> str:
    """A sentence for an empty view: "KV blocks: not told by vLLM." and what can be done instead."""
    words = untold(snapshot, *parts)
    return f"{what}: {words}. {instead}".strip() if words else ""
