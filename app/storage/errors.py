"""What can go wrong with the file of the chats: cause, numbers, remedy."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

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
    """Another process has the chats open."""


def explain(error: Exception, path: Path) -> StorageError:
    """The error of ours for one of sqlite's or of the operating system's, about the file `path`."""
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
                f"There is no room to save chats: {_free(path)} on the disk of {path.parent}, "
                f"the chats take {_size(path)}.",
                "Free some space on that disk; saving is tried again by itself.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StorageReadOnlyError(
                f"The chats cannot be written: no permission for {path}.",
                f"Give yourself the right to write in {path.parent}, or set INFERDECK_DATA_DIR "
                "to a folder of yours, and start again.",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StorageCorruptError(
                f"The file of the chats is damaged: {path} ({_size(path)}, {error}).",
                "Nothing in it was changed. Put a backup in its place and start again, or keep it "
                "aside and begin anew.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageLockedError(
                f"Another Inferdeck has the chats open: {path} is locked.",
                "Use that window, or close it and start this one again.",
            )
    return StorageError(
        f"The chats could not be read or written: {error} ({path}, {_free(path)}).",
        "Check the disk; saving is tried again by itself.",
    )


def _free(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / 2**20:,.1f} MiB free"
    except OSError:
        return "free space not known"


def _size(path: Path) -> str:
    try:
        return f"{path.stat().st_size / 2**20:,.1f} MiB"
    except OSError:
        return "size not known"
