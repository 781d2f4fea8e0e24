"""Records in a folder: a folder each, with one JSON file.

    <folder>/20260102-030405-1a2b3c4d/<name>.json    {"version", ...}

A folder each, so that `app.storage.trash` can delete one with undo, as it does models.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from app.storage.profiles import clean_name
from app.storage.report_export import write_report
from engine.errors import CheckpointError, ErrorInfo
from engine.evaluate.report import ReportError
from engine.json_file import read_json

VERSION = 1
LONGEST_NAME = 80
LARGEST = 2**28
"""Bytes of a file; replies to long texts are in it."""

_ID = re.compile(r"[0-9A-Za-z-]+")


class Record(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Record)


class RecordFolder(ABC, Generic[R]):
    """Records in `folder`, which need not exist yet. Every change is on disk when a method returns,
    all or nothing. Failed reads and writes raise ReportError. Call it in a thread: it waits for
    the disk."""

    WHAT = ""
    """A record in the errors; its file is `WHAT`.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def from_stored(self, record_id: str, stored: Mapping[str, Any]) -> R:
        """Raises ReportError, or KeyError, TypeError or ValueError, for damaged content."""

    @abstractmethod
    def to_stored(self, record: R) -> dict[str, Any]:
        """JSON of a record, without the version."""

    @abstractmethod
    def renamed(self, record: R, name: str) -> R:
        """The record with a cleaned name, unwritten. Raises ReportError where it needs one."""

    def listed(self, record: R) -> R:
        """What a list keeps of a record."""
        return record

    def read_all(self) -> tuple[list[R], list[ErrorInfo]]:
        """All records by id, and the errors of unreadable ones, which hide no others."""
        records: list[R] = []
        problems: list[ErrorInfo] = []
        found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for entry in found:
            if not _ID.fullmatch(entry.name) or not self.has(entry.name):
                continue  # moved aside, or not ours
            try:
                records.append(self.listed(self.load(entry.name)))
            except ReportError as error:
                problems.append(error.info())
        return records, problems

    def has(self, record_id: str) -> bool:
        return self._file(record_id).is_file()

    def load(self, record_id: str) -> R:
        file = self._file(record_id)
        try:
            stored: dict[str, Any] = read_json(file, limit=LARGEST)
            if stored["version"] != VERSION:
                raise ReportError(
                    f"{file} has format version {stored['version']}; supported: {VERSION}.",
                    "Open it with the Inferdeck version that wrote it.",
                )
            return self.from_stored(record_id, stored)
        except CheckpointError as error:
            raise ReportError(error.cause, f"Delete the {self.WHAT} and repeat it.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise ReportError(
                f"{self.WHAT.capitalize()} {file} is damaged: {error!r}.",
                "Delete it and repeat the run.",
            ) from error

    def rename(self, record_id: str, name: str) -> R:
        return self._write(self.renamed(self.load(record_id), name))

    def save(self, record: R) -> R:
        """Write a new record."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / record.id).mkdir(mode=0o700)
        except OSError as error:
            raise ReportError(
                f"Cannot write to {self.folder}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error
        return self._write(record)

    def _write(self, record: R) -> R:
        entry = {"version": VERSION, **self.to_stored(record)}
        write_report(self._file(record.id), json.dumps(entry, indent=1) + "\n")
        return record

    def _file(self, record_id: str) -> Path:
        if not _ID.fullmatch(record_id):
            raise ReportError(
                f"{self.WHAT.capitalize()} {record_id!r} not found.", "Select one from the table."
            )
        return self.folder / record_id / f"{self.WHAT}.json"


def new_id(created: str) -> str:
    """`created`: UTC, ISO 8601: ids sort by it."""
    digits = re.sub(r"\D", "", created)[:14]
    return f"{digits[:8]}-{digits[8:]}-{uuid.uuid4().hex[:8]}"


def clean(name: str) -> str:
    return clean_name(name, LONGEST_NAME)
