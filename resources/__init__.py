"""Data that ships with Inferdeck: icons, themes, presets and the starter models."""

from __future__ import annotations

from pathlib import Path


def resource_path(*parts: str) -> Path:
    """Return the path of a packaged resource, e.g. ``resource_path("starter", "chat")``."""
    return Path(__file__).parent.joinpath(*parts)
