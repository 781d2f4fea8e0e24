"""A versioned JSON file in the data folder. No Qt.

An unreadable file, or one of a newer version, is renamed and never overwritten. A write is all or
nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import InferdeckError

T = TypeVar("T")


class NotWrittenError(InferdeckError):
    """The file cannot be written."""


def write_whole(file: Path, text: str) -> None:
    """Replace `file` in one step. Raises OSError; then it is unchanged."""
    beside = file.with_name(file.name + ".part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


class KeptFile:
    """`what`: its content as the subject of a sentence, such as "Keyboard shortcuts". `refusal`:
    the error if it cannot be written."""

    def __init__(
        self, path: Path, version: int, what: str, refusal: type[InferdeckError] = NotWrittenError
    ) -> None:
        self.path, self.version, self.what, self._refusal = path, version, what, refusal
        self.problem = ""
        """What happened to an unreadable file; "" if nothing."""

    def read(self, parse: Callable[[Mapping[str, Any]], T], nothing: T) -> T:
        """The result of `parse`; `nothing` if the file is missing or unreadable. `parse` may raise
        Python's errors for malformed data."""
        if not self.path.exists():
            return nothing
        try:
            return parse(self._content())
        except (OSError, ValueError, TypeError, KeyError, AttributeError, InferdeckError) as error:
            self.problem = self._keep_aside(error)
            return nothing

    def write(self, content: Mapping[str, Any]) -> None:
        """Raises `refusal`; then the file is unchanged."""
        text = json.dumps({"version": self.version, **content}, indent=2) + "\n"
        try:
            write_whole(self.path, text)
        except OSError as error:
            raise self._refusal(
                f"{self.what} were not saved to {self.path}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error

    def _content(self) -> Mapping[str, Any]:
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        if stored["version"] != self.version:
            raise ValueError(f"file version {stored['version']}, supported: {self.version}")
        return dict(stored)

    def _keep_aside(self, error: Exception) -> str:
        names = (self.path.with_suffix(f".damaged-{number}.json") for number in count(1))
        aside = next(name for name in names if not name.exists())
        try:
            self.path.rename(aside)
        except OSError:
            return f"{self.what} cannot be read ({error})."
        return f"{self.what} could not be read ({error}). The old file was renamed to {aside}."
