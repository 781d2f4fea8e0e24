"""The chat store's SQLite file: errors, connections, schema, migrations, writer thread. No Qt."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from app.storage.records import contains
from engine.errors import InferdeckError


class StorageError(InferdeckError):
    """The chats could not be read or written."""


class StorageFullError(StorageError):
    """The disk is full."""


class StorageReadOnlyError(StorageError):
    """The file or its folder cannot be written."""


class StorageCorruptError(StorageError):
    """The file is damaged, or not ours."""


class StorageNewerError(StorageError):
    """The file was written by a newer version of the program."""


class StorageLockedError(StorageError):
    """Another process uses the chat file."""


def explain(error: Exception, path: Path) -> StorageError:
    """The StorageError for an error of SQLite or of the operating system about `path`."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    elif isinstance(error, PermissionError):
        code = sqlite3.SQLITE_READONLY
    elif isinstance(error, OSError) and error.errno == 28:  # ENOSPC
        code = sqlite3.SQLITE_FULL
    else:
        code = 0
    match code:
        case sqlite3.SQLITE_FULL:
            return StorageFullError(
                f"Disk full, chats not saved: {_free(path)} in {path.parent} "
                f"(chat file: {_size(path)}).",
                "Free some space on that disk. Saving retries automatically.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StorageReadOnlyError(
                f"Cannot save chats: no write permission for {path}.",
                f"Make {path.parent} writable, or set INFERDECK_DATA_DIR "
                "to another folder. Then restart.",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StorageCorruptError(
                f"The chat file is damaged: {path} ({_size(path)}, {error}).",
                "The file is unchanged. Restore a backup and restart, or start a new chat file.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageLockedError(
                f"The chats are open in another Inferdeck window: {path} is locked.",
                "Use that window, or close it and restart this one.",
            )
    return StorageError(
        f"Cannot access the chats: {error} ({path}, {_free(path)}).",
        "Check the disk. Saving retries automatically.",
    )


def _free(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / 2**20:,.1f} MiB free"
    except OSError:
        return "free space unknown"


def _size(path: Path) -> str:
    try:
        return f"{path.stat().st_size / 2**20:,.1f} MiB"
    except OSError:
        return "unknown size"


COMPANIONS = ("", "-wal", "-shm")
"""Suffixes of a database's files: the last changes may be in the second only."""


def set_aside(path: Path) -> Path:
    """Rename the file to an unused name; returns that name. Raises OSError."""
    names = (path.with_name(f"{path.stem}-kept-{number}{path.suffix}") for number in count(1))
    aside = next(name for name in names if not any(_beside(name, c).exists() for c in COMPANIONS))
    for companion in reversed(COMPANIONS):
        source = _beside(path, companion)
        if source.exists():
            source.rename(_beside(aside, companion))
    return aside


def _beside(path: Path, companion: str) -> Path:
    return path.with_name(path.name + companion)


def copy_readable(source: Path, target: Path) -> None:
    """Copy `source` if it can be read."""
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
    """A connection that holds the writer's lock until it is closed."""
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


MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE conversations(
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        title_is_automatic INTEGER NOT NULL,
        system_prompt TEXT NOT NULL,
        sampling TEXT NOT NULL,
        preset TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        deleted_at REAL
    );
    CREATE TABLE messages(
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
        parent_id TEXT,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        state TEXT NOT NULL,
        shown INTEGER NOT NULL,
        created REAL NOT NULL,
        figures TEXT,
        error TEXT
    );
    CREATE INDEX messages_of_conversation ON messages(conversation_id, number);
    CREATE INDEX messages_unfinished ON messages(state) WHERE state IN ('waiting', 'streaming');
    CREATE VIRTUAL TABLE messages_fts USING fts5(text, tokenize = 'trigram');
    CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
        DELETE FROM messages_fts WHERE rowid = old.number;
    END;
    CREATE TABLE presets(name TEXT PRIMARY KEY, sampling TEXT NOT NULL);
    """,
    """
    ALTER TABLE conversations ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN is_archived INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE messages ADD COLUMN attachments TEXT;
    CREATE TABLE reply_tokens(
        message_id TEXT PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
    """,
    """
    ALTER TABLE messages ADD COLUMN passages TEXT;
    """,
    """
    CREATE TABLE reply_times(
        message_id TEXT PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
    """,
    """
    CREATE TABLE unsent(conversation_id TEXT PRIMARY KEY, text TEXT NOT NULL);
    CREATE TRIGGER conversations_deleted AFTER DELETE ON conversations BEGIN
        DELETE FROM unsent WHERE conversation_id = old.id;
    END;
    """,
)

VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to VERSION, each step in its own transaction.

    Raises StorageNewerError for a file of a newer version, which stays unchanged.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StorageNewerError(
            f"{path} uses chat format {version} from a newer Inferdeck version. "
            f"This version supports formats up to {VERSION}.",
            "Use the newer version, set INFERDECK_DATA_DIR to another folder, or start a new "
            "chat file.",
        )
    for number in range(version, VERSION):
        script = MIGRATIONS[number]
        connection.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number + 1}; COMMIT;"
        )


log = logging.getLogger(__name__)
T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


class Writer:
    """Runs jobs in order on its own connection. A job's Future is done when its changes are on
    disk.

    A failed job is rolled back, and its Future raises StorageError; later jobs still run.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connection = connect()
        self._queue: SimpleQueue[tuple[Job, Future] | None] = SimpleQueue()
        self._closed = False
        # daemon: a program that forgets to close must still be able to end
        self._thread = threading.Thread(target=self._run, name="chat-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T]) -> Future[T]:
        future: Future[T] = Future()
        if self._closed:
            future.set_exception(StorageError("The chat store is closed.", "Restart Inferdeck."))
        else:
            self._queue.put((job, future))
        return future

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._connection.close()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            job, future = entry
            try:
                result = self._transaction(job)
            except Exception as error:
                if not isinstance(error, sqlite3.Error | OSError):
                    log.exception("a chat store job failed")
                future.set_exception(explain(error, self._path))
            else:
                future.set_result(result)

    def _transaction(self, job: Job[T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = job(self._connection)
            self._connection.execute("COMMIT")
            return result
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
