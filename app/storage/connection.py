"""Opening the file: our settings of SQLite, and the lock of the process that writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from app.storage.search import contains


def copy_readable(source: Path, target: Path) -> None:
    """Copy what can be read of `source`; nothing where it cannot be read."""
    # immutable: a read-only folder has no room for the files of WAL
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        try:
            with (
                closing(sqlite3.connect(f"{source.as_uri()}?{mode}", uri=True)) as original,
                closing(sqlite3.connect(target)) as copy,
            ):
                original.backup(copy)
                return
        except (sqlite3.Error, ValueError):
            target.unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
    try:
        connection.create_function("contains", 2, contains, deterministic=True)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection
    except sqlite3.Error:
        connection.close()
        raise


def process_lock(path: Path) -> sqlite3.Connection:
    """A connection that holds the lock of the writing process until it is closed."""
    lock_path = path.with_name(path.name + ".lock")
    connection = sqlite3.connect(
        lock_path, isolation_level=None, check_same_thread=False, timeout=0.1
    )
    try:
        connection.execute("BEGIN EXCLUSIVE")
        return connection
    except sqlite3.Error:
        connection.close()
        raise
