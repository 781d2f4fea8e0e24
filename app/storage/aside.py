"""A file of chats that cannot be used, kept beside the one that takes its place. No Qt."""

from __future__ import annotations

from itertools import count
from pathlib import Path

COMPANIONS = ("", "-wal", "-shm")
"""What SQLite keeps beside a file belongs to it: the last changes may be nowhere else."""


def set_aside(path: Path) -> Path:
    """Rename the file to a name that nothing has, and say which. Raises OSError."""
    names = (path.with_name(f"{path.stem}-kept-{number}{path.suffix}") for number in count(1))
    aside = next(name for name in names if not any(_beside(name, c).exists() for c in COMPANIONS))
    for companion in reversed(COMPANIONS):
        source = _beside(path, companion)
        if source.exists():
            source.rename(_beside(aside, companion))
    return aside


def _beside(path: Path, companion: str) -> Path:
    return path.with_name(path.name + companion)
