"""Suggested prompts of an empty chat. No Qt."""

from __future__ import annotations

import json
from pathlib import Path

from app.paths import resources_dir, starter_model
from app.storage.model_sources import is_starter

SHOWN = 6
"""Number of suggestions."""

Suggestion = tuple[str, str]
"""Title and prompt."""


def suggestions_for(model_path: str) -> list[Suggestion]:
    """The starter model has suggestions about its training data; other models have general ones."""
    if is_starter(model_path):
        return _read(starter_model().parent / "suggestions.json", "suggestions")[:SHOWN]
    return _read(resources_dir() / "prompts" / "suggestions.json", "suggestions")


def long_prompts() -> list[Suggestion]:
    """Prompts with long, predictable replies of the starter model."""
    return _read(starter_model().parent / "suggestions.json", "long_prompts")


def _read(file: Path, key: str) -> list[Suggestion]:
    entries = json.loads(file.read_text(encoding="utf-8"))[key]
    return [(entry["title"], entry["prompt"]) for entry in entries]
