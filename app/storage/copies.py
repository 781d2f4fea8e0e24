"""Copies of a chat file that cannot be written, or is damaged. No Qt.

A copy has no name in the file system, so that nothing of it is left however the process ends.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from app.storage.database import (
    begin,
    connect_copy,
    connect_unchanged,
    has_companion,
    migrate,
    process_lock,
)
from app.storage.errors import (
    StorageCorruptError,
    StorageError,
    StorageForeignError,
    StorageNewerError,
)
from app.storage.salvage import RecoveryCancelled, Salvaged, salvage
from app.storage.writer import transact

PREFIX = "inferdeck-chats-"
STEPS_BETWEEN = 100_000
"""Of SQLite's machine, between two looks at whether to stop: milliseconds."""
PIECE = 2**22
"""Bytes of a file copied between two such looks: milliseconds."""
STALE_S = 3600.0
"""Age of a temporary folder that no running process is still filling."""


def copy_of(path: Path, error: StorageError) -> sqlite3.Connection | None:
    """What can be read of a file that `error` keeps from being used; None where it is damaged, and
    only `salvaged` can read it."""
    if isinstance(error, StorageCorruptError):
        return None
    copy = connect_copy()
    try:
        if not isinstance(error, StorageForeignError | StorageNewerError):
            _copy_readable(path, copy)
        _prepare(copy)
    except sqlite3.Error:  # its format or its version is not what the file says
        copy.close()
        return None
    return copy


def empty_copy() -> sqlite3.Connection:
    copy = connect_copy()
    migrate(copy)
    return copy


def salvaged(path: Path, found: Salvaged, stops: Callable[[], bool]) -> sqlite3.Connection:
    """The readable rows of a damaged file, counted in `found`. Raises RecoveryCancelled as soon as
    `stops` is true, OSError or sqlite3.Error where the file cannot be read at the moment or has no
    room in memory and the temporary folder."""
    copy = empty_copy()
    try:
        copy.set_progress_handler(stops, STEPS_BETWEEN)
        try:
            with _unchanged(path, stops) as source:
                source.set_progress_handler(stops, STEPS_BETWEEN)
                salvage(source, copy, found, stops)
        except (sqlite3.Error, OSError) as error:
            if stops():
                raise RecoveryCancelled from error
            raise
        copy.set_progress_handler(None, 0)
        _prepare(copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _prepare(copy: sqlite3.Connection) -> None:
    migrate(copy)
    transact(copy, begin)


def _copy_readable(path: Path, copy: sqlite3.Connection) -> None:
    """Copy the file if it can be read."""
    uri = path.absolute().as_uri()
    # exclusive: a full disk has no room for the index that processes share
    for mode, locking in (("ro", "NORMAL"), ("rw", "EXCLUSIVE")):
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{uri}?mode={mode}", uri=True)) as source,
        ):
            source.execute(f"PRAGMA locking_mode = {locking}")
            source.backup(copy)
            return
    with suppress(sqlite3.Error, OSError), _unchanged(path, lambda: False) as source:
        source.backup(copy)


@contextmanager
def _unchanged(path: Path, stops: Callable[[], bool]) -> Iterator[sqlite3.Connection]:
    """The file, or a copy of it in the temporary folder: to read its companion is to change
    it. Raises RecoveryCancelled as soon as `stops` is true."""
    if not has_companion(path):
        with closing(connect_unchanged(path)) as source:
            yield source
        return
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        for name in (path.name, f"{path.name}-wal"):
            _copy_file(path.with_name(name), folder / name, stops)
        with closing(sqlite3.connect(folder / path.name, check_same_thread=False)) as source:
            with suppress(sqlite3.Error):
                source.execute("SELECT 1 FROM sqlite_master").fetchall()  # opens the companion
            if os.name == "posix":  # open files need no name: nothing is left of a killed process
                shutil.rmtree(folder, ignore_errors=True)
            yield source
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_file(source: Path, target: Path, stops: Callable[[], bool]) -> None:
    with open(source, "rb") as read, open(target, "xb") as written:
        while piece := read.read(PIECE):
            if stops():
                raise RecoveryCancelled
            written.write(piece)


def sweep() -> None:
    """Remove the copies that killed processes left in the temporary folder."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, sqlite3.Error):
            if folder.is_symlink() or time.time() - folder.stat().st_mtime < STALE_S:
                continue
            process_lock(folder / "chats.sqlite3").close()  # held by a process of an older version
            shutil.rmtree(folder)
