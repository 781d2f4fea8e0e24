"""Where a model lies in the Hugging Face cache. Pure paths and links, no network.

models--owner--name/
    blobs/<etag>               the content, named by its hash
    blobs/<etag>.incomplete    what has arrived of it so far
    refs/main                  the commit that main was when it was downloaded
    snapshots/<commit>/<name>  links to blobs: what everybody opens

The links are made when every blob is there, so nobody ever finds half a model.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.hub.files import RepoFile


@dataclass(frozen=True, slots=True)
class RepoFolder:
    """One model's folder in the cache `root`."""

    root: Path
    repo_id: str

    @property
    def path(self) -> Path:
        return self.root / "--".join(["models", *self.repo_id.split("/")])

    def blob(self, etag: str) -> Path:
        return self.path / "blobs" / etag

    def incomplete(self, etag: str) -> Path:
        return self.path / "blobs" / f"{etag}.incomplete"

    def lock(self, etag: str) -> Path:
        """The lock that huggingface_hub takes for the same blob."""
        return self.root / ".locks" / self.path.name / f"{etag}.lock"

    def snapshot(self, commit: str) -> Path:
        return self.path / "snapshots" / commit

    def make(self) -> None:
        # `snapshots` may be empty, but a folder without it counts as damaged
        for name in ("blobs", "snapshots", "refs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def has(self, commit: str, file: RepoFile) -> bool:
        """Whether the whole file is there."""
        return self.blob(file.etag).exists() or (self.snapshot(commit) / file.name).exists()

    def arrived(self, commit: str, files: Iterable[RepoFile]) -> int:
        """Bytes of `files` that are there, whole or in part."""
        return sum(
            file.size if self.has(commit, file) else _size(self.incomplete(file.etag))
            for file in files
        )

    def publish(self, commit: str, files: Iterable[RepoFile]) -> Path:
        """Link the blobs under their names and let main point at them; the snapshot's path."""
        folder = self.snapshot(commit)
        for file in files:
            pointer = folder / file.name
            pointer.parent.mkdir(parents=True, exist_ok=True)
            if not pointer.exists():
                _link(self.blob(file.etag), pointer)
        reference = self.path / "refs" / "main"
        reference.parent.mkdir(parents=True, exist_ok=True)
        fresh = reference.with_name(f"main.{uuid.uuid4().hex[:8]}.tmp")
        fresh.write_text(commit, encoding="utf-8")
        os.replace(fresh, reference)
        return folder

    def discard(self) -> None:
        """Remove what no snapshot uses: parts, and blobs of a download that was not finished."""
        links = self._snapshot_files()
        used = {Path(os.readlink(f)).name for f in links if f.is_symlink()}
        for file in (self.path / "blobs").glob("*"):
            if file.name not in used:
                file.unlink(missing_ok=True)
        if not links:
            shutil.rmtree(self.path, ignore_errors=True)

    def _snapshot_files(self) -> list[Path]:
        return [f for f in (self.path / "snapshots").rglob("*") if not f.is_dir()]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _link(blob: Path, pointer: Path) -> None:
    """A relative link, so that the cache can be moved; where there are no links (Windows without
    developer mode) the content itself, as huggingface_hub does it."""
    pointer.unlink(missing_ok=True)
    try:
        os.symlink(os.path.relpath(blob, pointer.parent), pointer)
    except OSError:
        os.replace(blob, pointer)
