"""A versioned JSON file in the data folder. No Qt.

A damaged file, or one of a newer version, is renamed; one that cannot be read at the moment stays.
Neither is overwritten. A write is all or nothing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import CheckpointError, InferdeckError
from engine.json_file import checked, read_json

C = TypeVar("C")
T = TypeVar("T")


class _Versioned(msgspec.Struct):
    version: int


class NotWrittenError(InferdeckError):
    """The file cannot be written."""


def write_whole(file: Path, content: str | bytes) -> None:
    """Replace `file` in one step, and wait for the disk; a new one is readable by its owner alone,
    an existing one keeps its mode. Of a symbolic link the target is replaced. Raises OSError; then
    it is unchanged."""
    _write(file, content, os.fsync)  # a crash must not leave an empty file under its name


def write_soon(file: Path, content: str | bytes) -> None:
    """`write_whole`, without waiting for the disk: for what can be made again if the machine
    crashes, which may leave an empty file."""
    _write(file, content, lambda number: None)


def _write(file: Path, content: str | bytes, sync: Callable[[int], object]) -> None:
    file = _target(file)
    data = content.encode() if isinstance(content, str) else content
    number, name = tempfile.mkstemp(".part", ".", file.parent)  # which no other file has
    beside = Path(name)
    try:
        with open(number, "wb") as out:
            if file.is_file():
                os.chmod(beside, stat.S_IMODE(file.stat().st_mode))
            out.write(data)
            out.flush()
            sync(out.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def _target(file: Path) -> Path:
    """What a symbolic link leads to, perhaps not there yet. Raises OSError for one that leads to
    itself."""
    if not file.is_symlink():
        return file
    found = Path(os.path.realpath(file))
    if found.is_symlink():  # realpath stops in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(file))
    return found


def private(path: str, flags: int) -> int:
    """Opener of files for their owner alone."""
    return os.open(path, flags, 0o600)


def read_own(file: Path, kind: type[T] = dict) -> T:  # type: ignore[assignment]
    """`read_json` of a file of ours. Raises CheckpointError for damaged content only, and OSError
    where it cannot be read at the moment: a link may lead to a disk that is not mounted."""
    try:
        return read_json(file, kind)
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise


def unread_text(file: Path, what: str, error: OSError) -> str:
    """`what`: its content as the subject of a sentence."""
    return f"{what} cannot be read ({file}: {error.strerror or error})."


class KeptFile:
    """`what`: its content as the subject of a sentence, such as "Keyboard shortcuts". `refusal`:
    the error if it cannot be written."""

    def __init__(
        self, path: Path, version: int, what: str, refusal: type[InferdeckError] = NotWrittenError
    ) -> None:
        self.path, self.version, self.what, self._refusal = path, version, what, refusal
        self.problem = ""
        """What happened to an unreadable file; "" if nothing."""
        self._unread = ""  # why it may have content that was not read

    def read(self, kind: type[C], parse: Callable[[C], T], nothing: T) -> T:
        """The result of `parse` for the content as a `kind`; `nothing` if the file is missing or
        unreadable. `parse` may raise ValueError or InferdeckError."""
        if not os.path.lexists(self.path):
            return nothing
        try:
            stored: dict[str, Any] = read_own(self.path)
            version = checked(stored, _Versioned, self.path).version
            if version != self.version:
                raise ValueError(f"version {version}, supported: {self.version}")
            return parse(checked(stored, kind, self.path))
        except OSError as error:
            self.problem = self._unread = unread_text(self.path, self.what, error)
            return nothing
        except (ValueError, InferdeckError) as error:
            self.problem = kept_aside(self.path, self.what, error)
            return nothing

    def write(self, content: Mapping[str, Any]) -> None:
        """Raises `refusal`; then the file is unchanged."""
        if self._unread:
            raise self._refusal(
                f"{self.what} were not saved. {self._unread}",
                "Check the file's permissions, then restart Inferdeck.",
            )
        text = json.dumps({"version": self.version, **content}, indent=2) + "\n"
        try:
            write_whole(self.path, text)
        except OSError as error:
            raise self._refusal(
                f"{self.what} were not saved to {self.path}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error


def kept_aside(file: Path, what: str, error: Exception) -> str:
    """Rename a damaged file, so that nothing overwrites it; says so. `what`: its content as the
    subject of a sentence."""
    names = (file.with_suffix(f".damaged-{number}{file.suffix}") for number in count(1))
    aside = next(name for name in names if not name.exists())
    cause = error.cause if isinstance(error, InferdeckError) else f"{file}: {error}"
    try:
        file.rename(aside)
    except OSError:
        return f"{what} cannot be read ({cause.rstrip('.')})."
    return f"{what} could not be read ({cause.rstrip('.')}). The old file was renamed to {aside}."
