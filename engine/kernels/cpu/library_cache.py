"""The cache of compiled libraries. What it gives can be mapped: nothing cut, foreign or writable by
other users.

    library | sha256 of key and library

The loader ignores what follows a library. Files appear under their names whole, and on disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CACHE_VARIABLE = "INFERDECK_CACHE_DIR"
_MOST_BYTES = 64 * 2**20
_OTHERS = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


class UnavailableError(Exception):
    """Why the CPU kernels cannot be compiled, and the remedy."""


def cache_folder(name: str = "native") -> Path:
    """The folder of compiled libraries, or another of this cache (XDG base directories); created if
    needed. Raises UnavailableError, also where it belongs to another user."""
    override = os.environ.get(CACHE_VARIABLE)
    try:
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "inferdeck")
        folder = (Path(override) if override else users) / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        user = os.geteuid() if hasattr(os, "geteuid") else found.st_uid  # Windows has none
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
            raise UnavailableError(
                f"the cache folder {folder} is a link or belongs to user {found.st_uid}: "
                f"remove it, or set {CACHE_VARIABLE}"
            )
        if found.st_mode & _OTHERS:
            folder.chmod(0o700)
    except (OSError, RuntimeError) as error:  # also where there is no home
        raise UnavailableError(f"cannot write the cache folder: {error}") from error
    return folder


@contextmanager
def one_at_a_time(folder: Path, longest_s: float, check: Callable[[], None]) -> Iterator[None]:
    """Waits while another process, or thread, is here for the same folder: what that one stores
    need not be made again. Goes on after `longest_s`, and where the file system has no locks.
    `check` is called all the time: what it raises ends the wait."""
    import fcntl  # libraries are compiled on Linux alone

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + longest_s
        with suppress(OSError):
            while time.monotonic() < until:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    check()
                    time.sleep(0.02)
        yield
    finally:
        os.close(handle)  # and with it the lock


def is_intact(file: Path, key: str) -> bool:
    """Whether `file` is a library that this user stored under `key`. One that is not is logged."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = error.strerror
    else:
        with open(handle, "rb") as opened:
            problem = _problem(opened.fileno()) or _damage(opened.read(), key)
    if problem:
        log.warning("Compiling the CPU kernels again: %s: %s.", file, problem)
    return not problem


def store(library: bytes, file: Path, key: str) -> None:
    """`library` as `file`, replaced in one step: other processes may store the same one. Raises
    OSError."""
    handle, name = tempfile.mkstemp(dir=file.parent)  # 0600
    try:
        with open(handle, "wb") as beside:
            beside.write(library + _seal(library, key))
            beside.flush()
            os.fsync(handle)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _problem(handle: int) -> str:
    """Why an opened file is not loaded, whatever its content."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if found.st_uid != os.geteuid():
        return f"owned by user {found.st_uid}"
    if found.st_size > _MOST_BYTES:
        return f"too large ({found.st_size:,} bytes)"
    return "writable by other users" if found.st_mode & _OTHERS else ""


def _damage(content: bytes, key: str) -> str:
    size = hashlib.sha256().digest_size
    is_whole = _seal(content[:-size], key) == content[-size:]
    return "" if is_whole else f"damaged ({len(content):,} bytes)"


def _seal(library: bytes, key: str) -> bytes:
    return hashlib.sha256(key.encode() + library).digest()
