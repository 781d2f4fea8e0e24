"""Errors of the chat store: what SQLite and the operating system report, with numbers. No Qt."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from engine.errors import InferdeckError, in_one_line
from engine.units import bytes_text


class StorageError(InferdeckError):
    """The chats could not be read or written."""


class StorageFullError(StorageError):
    """The disk is full."""


class StorageReadOnlyError(StorageError):
    """The file or its folder cannot be written, or cannot be locked."""


class StorageCorruptError(StorageError):
    """The file is damaged or empty."""


class StorageForeignError(StorageError):
    """The file is not one of chats: another program's database, a folder, a FIFO."""


class StorageNewerError(StorageError):
    """The file was written by a newer version of the program."""


class StorageLockedError(StorageError):
    """Another process uses the chat file."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS = {
    sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK, sqlite3.SQLITE_IOERR_SHMLOCK,
    sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK, sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
}  # fmt: skip
_PROBE_BYTES = 2**16
"""More than the 32 KiB that SQLite needs to open a file of chats."""


def explain(error: BaseException, path: Path) -> StorageError:
    """The StorageError for an error of SQLite or of the operating system about `path`."""
    if isinstance(error, StorageError):
        return error
    match _code(error, path):
        case sqlite3.SQLITE_FULL:
            return StorageFullError(
                f"The disk is full: {free_text(path)} in {path.parent} "
                f"(chat file: {_size(path)}).",
                "Free some space on that disk. Saving resumes automatically.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StorageReadOnlyError(
                f"Cannot save chats: no write permission for {path}.",
                f"Make {path.parent} writable: saving resumes automatically. "
                "Or set INFERDECK_DATA_DIR to another folder and restart.",
            )
        case sqlite3.SQLITE_NOLFS:
            return StorageReadOnlyError(
                f"Cannot save chats: the file system of {path.parent} does not support file locks "
                f"({error}).",
                "Set INFERDECK_DATA_DIR to a folder on a local disk and restart.",
            )
        # our statements fail as such (ERROR) only where the tables are not those that we made
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            return StorageCorruptError(
                f"The chat file is damaged: {path} ({_size(path)}, {error}).",
                "The file is unchanged. Restore a backup and restart, or start a new chat file.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageLockedError(
                f"The chats are open in another Inferdeck window: {path} is locked.",
                "Use that window, or close it to save from this one.",
            )
    return StorageError(
        f"Cannot access the chats: {in_one_line(error)} ({path}, {free_text(path)}).",
        "Check the disk. Saving retries automatically.",
    )


def _code(error: BaseException, path: Path) -> int:
    """SQLite's result code, without the extended part."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _NO_LOCKS:
            return sqlite3.SQLITE_NOLFS
        if code & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            return int(code & 0xFF)
        # a full disk is also "disk I/O error" or "unable to open database file"
        return _code_of(probe(path.parent)) or int(code & 0xFF)
    if isinstance(error, UnicodeDecodeError):  # names in a damaged schema
        return sqlite3.SQLITE_CORRUPT
    return _code_of(error.errno) if isinstance(error, OSError) else 0


def _code_of(number: int | None) -> int:
    if number in _FULL:
        return sqlite3.SQLITE_FULL
    return sqlite3.SQLITE_READONLY if number in _REFUSED else 0


def probe(folder: Path) -> int | None:
    """Why a small file cannot be written to `folder`; None if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def free_text(path: Path) -> str:
    try:
        return f"{bytes_text(shutil.disk_usage(path.parent).free)} free"
    except OSError:
        return "free space unknown"


def _size(path: Path) -> str:
    try:
        return bytes_text(path.stat().st_size)
    except OSError:
        return "unknown size"
