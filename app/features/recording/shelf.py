"""The folder of saved recordings. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.features.recording import file


@dataclass(frozen=True, slots=True)
class StoredRecording:
    """`seconds` and `model` are None and "" where an earlier version saved it. `size`: bytes."""

    path: Path
    created: str
    seconds: float | None
    model: str
    size: int


def stored(folder: Path) -> list[StoredRecording]:
    """The recordings in a folder, newest first; unreadable files are left out."""
    found = []
    for path in folder.glob(f"*{file.SUFFIX}"):
        try:
            about, size = file.read_about(path), path.stat().st_size
        except (OSError, file.RecordingError):
            continue
        seconds = about.get("seconds")
        found.append(
            StoredRecording(
                path, str(about.get("created", "")),
                float(seconds) if isinstance(seconds, (int, float)) else None,
                str(about.get("model", "")), size,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.created, one.path.name), reverse=True)


def new_path(folder: Path, now: datetime) -> Path:
    """A free name in the folder, which is made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = f"{now:%Y-%m-%d-%H%M}"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
    paths = (folder / f"{name}{file.SUFFIX}" for name in names)
    return next(path for path in paths if not path.exists())
