"""Errors of the chat file: cause, numbers, remedy."""

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
    """Another process uses the chat file."""


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
                f"No space to save the chats: {_free(path)} on the disk of {path.parent}, "
                f"the chats take {_size(path)}.",
                "Free some space on that disk. Saving retries automatically.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StorageReadOnlyError(
                f"Cannot write the chats: no permission for {path}.",
                f"Allow writing in {path.parent}, or set INFERDECK_DATA_DIR "
                "to another folder, and restart.",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StorageCorruptError(
                f"The chat file is damaged: {path} ({_size(path)}, {error}).",
                "It is unchanged. Restore a backup and restart, or move it aside and start a new "
                "one.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageLockedError(
                f"Another Inferdeck uses the chats: {path} is locked.",
                "Use that window, or close it and restart this one.",
            )
    return StorageError(
        f"Cannot read or write the chats: {error} ({path}, {_free(path)}).",
        "Check the disk. Saving retries automatically.",
    )


def _free(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / 2**20:,.1f} MiB free"
    except OSError:
        return "unknown free space"


def _size(path: Path) -> str:
    try:
        return f"{path.stat().st_size / 2**20:,.1f} MiB"
    except OSError:
        return "unknown size"
