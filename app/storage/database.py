"""The chat store's SQLite file: connections, checks, schema, migrations. No Qt.

    chats.sqlite3, -wal, -shm     the file, and its companions while it is open
    chats.sqlite3.lock            locked by the process that writes
    chats.sqlite3.new             a file that is being made: renamed when it is whole, if need be by
                                  the next start; removed where chats.sqlite3 is there

All are readable by their owner alone: SQLite gives companions the mode of the file.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from app.storage.errors import (
    StorageCorruptError,
    StorageError,
    StorageForeignError,
    StorageNewerError,
    explain,
)
from app.storage.json_file import private
from app.storage.records import mark_interrupted
from app.storage.search import contains
from app.storage.writer import transact

COMPANIONS = ("", "-wal", "-shm")
"""Suffixes of a database's files: the last changes may be in the second only."""
_KEPT = ("-wal", "")
"""Those that hold chats; the file itself is the last to appear."""


class Connections(NamedTuple):
    """To an open file; or to a copy: then reader and writer are one, and nothing is locked."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection
    lock: sqlite3.Connection | None = None

    def close(self) -> None:
        for connection in self:
            if connection is not None:
                connection.close()


def open_file(path: Path, lock: sqlite3.Connection | None = None) -> Connections:
    """Open the file of chats for writing, or make it. `lock`: its lock, if it is held already.

    Raises StorageError; then an existing file is unchanged.
    """
    with ExitStack() as opened:

        def kept(connection: sqlite3.Connection) -> sqlite3.Connection:
            opened.callback(connection.close)
            return connection

        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = kept(lock or process_lock(path))
            fresh = _fresh(path)
            if os.path.lexists(path):
                check(path)
                with suppress(OSError):  # else it would come back after `path` is deleted
                    _clear(fresh)
            elif _is_whole(fresh):
                if has_companion(path):
                    set_aside(path)
                _put_in_place(path)
            else:
                make(path, migrate)
            reader = kept(connect(path))
            migrate(reader)
            writer = kept(connect(path))
            transact(writer, begin)
        except (sqlite3.Error, OSError, MemoryError, UnicodeDecodeError) as error:
            raise explain(error, path) from error
        opened.pop_all()
    return Connections(reader, writer, held)


def make(path: Path, fill: Callable[[sqlite3.Connection], Any]) -> Path | None:
    """Put a new file that `fill` wrote at `path`. A file that is there is set aside; returns its
    new name, or None. Raises sqlite3.Error or OSError; then nothing has changed."""
    fresh = _fresh(path)
    _clear(fresh)
    aside = None
    try:
        with open(fresh, "xb", opener=private):
            pass
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            fill(connection)
        if os.path.lexists(path) or has_companion(path):
            aside = set_aside(path)
        _put_in_place(path)
    except BaseException:
        if aside is not None:
            _put_back(aside, path)
        _remove(fresh)
        raise
    return aside if aside is not None and aside.exists() else None


def _fresh(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _is_whole(fresh: Path) -> bool:
    """Whether it was finished by a process that was killed before it could rename it: it is written
    in one transaction."""
    if not fresh.exists() or _beside(fresh, "-journal").exists():
        return False
    try:
        check(fresh)
    except (sqlite3.Error, StorageError):
        return False
    return True


def _put_in_place(path: Path) -> None:
    """Rename the whole new file to `path`. The file there has another name by now; it goes first,
    its companions, which must never meet the new file, after it. A process killed in between leaves
    the new file to the next start."""
    for companion in COMPANIONS:
        _beside(path, companion).unlink(missing_ok=True)
    _fresh(path).rename(path)


def _clear(fresh: Path) -> None:
    """Remove a file that was not put in place; a folder of that name is renamed."""
    if fresh.is_dir():
        fresh.rename(_unused_name(fresh))
    _remove(fresh)


def _remove(path: Path) -> None:
    for companion in (*COMPANIONS, "-journal"):
        _beside(path, companion).unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Give the file, or its companion alone, an unused name besides its own; returns that name.
    Raises OSError."""
    aside = _unused_name(path)
    try:
        for companion in _KEPT:
            if _beside(path, companion).exists():
                _link(_beside(path, companion), _beside(aside, companion))
    except BaseException:
        _remove(aside)
        raise
    return aside


def _unused_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-kept-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not any(_beside(name, c).exists() for c in COMPANIONS))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        with open(source, "rb") as read, open(target, "xb", opener=private) as written:
            shutil.copyfileobj(read, written)
            written.flush()
            os.fsync(written.fileno())  # the source is removed next


def _put_back(aside: Path, path: Path) -> None:
    for companion in _KEPT:
        kept = _beside(aside, companion)
        if kept.exists():
            kept.replace(_beside(path, companion))
            kept.unlink(missing_ok=True)  # two names of one file: `replace` leaves both


def _beside(path: Path, companion: str) -> Path:
    return path.with_name(path.name + companion)


def has_companion(path: Path) -> bool:
    """Whether changes may be in the companion only."""
    wal = _beside(path, "-wal")
    return wal.exists() and wal.stat().st_size > 0


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
    try:
        return prepared(connection, "WAL", "FULL")
    except sqlite3.Error:
        connection.close()
        raise


def connect_copy() -> sqlite3.Connection:
    """An empty database in memory; above 256 MiB in a temporary file without a name. It ends with
    the process."""
    connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA cache_size = -262144")
    return prepared(connection, "MEMORY", "OFF")


def prepared(
    connection: sqlite3.Connection, journal_mode: str, synchronous: str
) -> sqlite3.Connection:
    connection.create_function("contains", 2, contains, deterministic=True)
    connection.text_factory = _text
    for pragma in (
        f"journal_mode = {journal_mode}", f"synchronous = {synchronous}", "foreign_keys = ON",
    ):  # fmt: skip
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _text(data: bytes) -> str:
    return data.decode(errors="replace")  # one damaged text must not hide the others


def process_lock(path: Path) -> sqlite3.Connection:
    """A connection that holds the writer's lock until it is closed."""
    lock_path = path.with_name(path.name + ".lock")
    nonblock = getattr(os, "O_NONBLOCK", 0)  # for a FIFO; Windows has neither
    os.close(os.open(lock_path, os.O_CREAT | os.O_RDWR | nonblock, 0o600))
    connection = sqlite3.connect(
        lock_path, isolation_level=None, check_same_thread=False, timeout=0.1
    )
    try:
        connection.execute("BEGIN EXCLUSIVE")
        return connection
    except sqlite3.Error:
        connection.close()
        raise


def begin(connection: sqlite3.Connection) -> None:
    """Of a process before: unfinished replies are interrupted, deleted chats removed."""
    mark_interrupted(connection)
    connection.execute("DELETE FROM conversations WHERE deleted_at IS NOT NULL")


def check(path: Path) -> None:
    """Raises StorageError for a file that is empty, not ours or newer; leaves it unchanged."""
    found = path.stat()
    move = f"Move {path.name} elsewhere, or set INFERDECK_DATA_DIR to another folder and restart."
    if not stat.S_ISREG(found.st_mode):
        raise StorageForeignError(f"{path} is not a regular file.", move)
    if found.st_size < 2:  # one byte is an empty database to SQLite
        raise StorageCorruptError(
            f"The chat file is empty: {path} ({found.st_size} bytes). "
            "A crash or a full disk can cause this.",
            "The file is unchanged. Restore a backup and restart, or start a new chat file.",
        )
    with closing(connect_unchanged(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in names if not name.startswith("sqlite_")}
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application or ((tables or version) and not tables >= {"conversations", "messages"}):
        listed = ", ".join(sorted(tables)[:3]) or "none"
        raise StorageForeignError(
            f"{path} belongs to another program (SQLite tables: {listed}; "
            f"application id {application}).",
            move,
        )
    if version < 0:
        raise StorageCorruptError(
            f"The chat file is damaged: {path} has format {version}.",
            "The file is unchanged. Restore a backup and restart, or start a new chat file.",
        )
    if version > VERSION:
        raise StorageNewerError(
            f"{path} uses chat format {version} from a newer Inferdeck version. "
            f"This version supports formats up to {VERSION}.",
            "Use the newer version, set INFERDECK_DATA_DIR to another folder, or start a new "
            "chat file.",
        )


def connect_unchanged(path: Path) -> sqlite3.Connection:
    """For reading only. "immutable" makes no companions; changes in one would be missing then."""
    mode = "mode=ro" if has_companion(path) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
    connection.text_factory = _text
    return connection


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


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to VERSION, each step in its own transaction."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number in range(version, VERSION):
        script = MIGRATIONS[number]
        connection.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number + 1}; COMMIT;"
        )
