"""Deletion with undo: a folder is moved aside first, and removed permanently when undo is no longer
offered.

Moving aside is a rename within one folder: it takes no time and no space, whatever the size. A
journal lists moved folders, so that the next start removes what a crashed run left.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.storage.json_file import kept_aside, read_own, unread_text, write_whole
from engine.errors import CheckpointError, InferdeckError

PREFIX = ".inferdeck-deleted-"
_WHAT = "The list of deleted models"


class TrashError(InferdeckError):
    """A model that cannot be moved to the trash, restored or removed."""


@dataclass(frozen=True, slots=True)
class Trashed:
    """A folder that was at `original` and is at `aside`."""

    original: Path
    aside: Path


class Trash:
    """Folders that were moved aside, listed in `journal` (a JSON file)."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.problem = ""
        """What happened to an unreadable journal; "" if nothing."""
        self._lock = threading.Lock()  # models are removed in threads

    def put(self, folder: Path) -> Trashed:
        """Move `folder` aside. Raises TrashError if that fails."""
        entry = Trashed(folder, folder.with_name(f"{PREFIX}{uuid.uuid4().hex[:12]}"))
        try:
            # Written first: a folder that is aside and in no journal would stay for ever.
            with self._lock:
                self._write([*self._read(), entry])
            os.rename(entry.original, entry.aside)
        except OSError as error:
            self._forget(entry)
            raise TrashError(
                f"Cannot delete {folder}: {error.strerror or error}.",
                "Check its permissions, and close other programs that use it.",
            ) from error
        return entry

    def restore(self, entry: Trashed) -> None:
        """Move it back. Raises TrashError if its place is taken."""
        if entry.original.exists():
            raise TrashError(
                f"Cannot restore the deleted model: {entry.original} already exists.",
                f"The deleted model is kept in {entry.aside} until the program exits.",
            )
        try:
            os.rename(entry.aside, entry.original)
        except OSError as error:
            raise TrashError(
                f"Cannot restore {entry.original}: {error.strerror or error}.",
                f"Move {entry.aside} to that path manually before the program exits.",
            ) from error
        self._forget(entry)

    def purge(self, entry: Trashed) -> None:
        """Remove it permanently (seconds for a large model). Raises TrashError; the next start
        tries again."""
        try:
            if _uses_shared_blobs(entry.aside) and not entry.original.exists():
                _delete_through_hub(entry)
            if entry.aside.is_dir():
                shutil.rmtree(entry.aside)
            else:
                entry.aside.unlink(missing_ok=True)
        except OSError as error:
            raise TrashError(
                f"Cannot remove {entry.aside}: {error.strerror or error}.",
                "Check its permissions, or remove it manually.",
            ) from error
        self._forget(entry)

    def purge_all(self) -> None:
        """Remove everything that was moved aside; failures are retried at the next start."""
        for entry in self.entries:
            try:
                self.purge(entry)
            except TrashError:
                continue

    @property
    def entries(self) -> list[Trashed]:
        """Folders that are moved aside, oldest first; none where the journal cannot be read at the
        moment."""
        try:
            return self._read()
        except OSError as error:
            self.problem = self.problem or unread_text(self._journal, _WHAT, error)
            return []

    def _read(self) -> list[Trashed]:
        """Raises OSError where the journal cannot be read at the moment: then it must stay."""
        if not os.path.lexists(self._journal):
            return []
        try:
            stored = read_own(self._journal, list[tuple[str, str]])
        except CheckpointError as error:
            self.problem = self.problem or kept_aside(self._journal, _WHAT, error)
            return []
        found = [Trashed(Path(original), Path(aside)) for original, aside in stored]
        # whatever the file says, nothing is ever removed that was not put aside by `put`
        return [e for e in found if e.aside.name.startswith(PREFIX)]

    def _forget(self, entry: Trashed) -> None:
        # where this fails, the next start finds nothing to remove
        with self._lock, suppress(OSError):
            left = [known for known in self._read() if known != entry]
            if left or self._journal.exists():
                self._write(left)

    def _write(self, entries: list[Trashed]) -> None:
        text = json.dumps([[str(e.original), str(e.aside)] for e in entries])
        write_whole(self._journal, text)


def _uses_shared_blobs(folder: Path) -> bool:
    """Whether the model has blobs in the cache's shared store (huggingface_hub 2), where only
    huggingface_hub knows their users."""
    blobs = folder / "blobs"
    return blobs.is_dir() and any(blob.is_symlink() for blob in blobs.iterdir())


def _delete_through_hub(entry: Trashed) -> None:
    from huggingface_hub import scan_cache_dir

    os.rename(entry.aside, entry.original)
    for repo in scan_cache_dir(entry.original.parent).repos:
        if repo.repo_path.name == entry.original.name:
            commits = [revision.commit_hash for revision in repo.revisions]
            scan_cache_dir(entry.original.parent).delete_revisions(*commits).execute()
    if entry.original.exists():  # what no revision knew
        os.rename(entry.original, entry.aside)
