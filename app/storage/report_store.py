"""Saved evaluation reports: one folder with a JSON file each.

    evaluations/20260102-030405-1a2b3c4d/report.json    {"version", "name", "notes", "report"}

Each report has a folder, so that `app.storage.trash` can delete it with undo, as it does models.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from app.storage.profiles import clean_name
from app.storage.report_export import write_report
from app.storage.report_metrics import title_of
from engine.errors import CheckpointError, ErrorInfo
from engine.evaluate.report import EvaluationReport, ReportError, from_json, to_json
from engine.json_file import read_json

VERSION = 1
LONGEST_NAME = 80
LARGEST = 2**28
"""Bytes of a report; answers of long texts are in it."""

_FILE = "report.json"
_ID = re.compile(r"[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report with the user's name and notes."""

    id: str
    name: str
    report: EvaluationReport
    notes: str = ""


class Shelf(NamedTuple):
    """Stored reports, newest first, and unreadable ones."""

    reports: tuple[StoredReport, ...]
    problems: tuple[ErrorInfo, ...]


class ReportStore:
    """Reports in `folder`, which need not exist yet. Every change is on disk when a method returns,
    all or nothing. Failed reads and writes raise ReportError. Files are small and fast; list many
    of them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> Shelf:
        """All reports. A damaged one does not hide the others."""
        reports: list[StoredReport] = []
        problems: list[ErrorInfo] = []
        found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for entry in found:
            if not (entry / _FILE).is_file() or not _ID.fullmatch(entry.name):
                continue  # moved aside, or not ours
            try:
                reports.append(self.load(entry.name))
            except ReportError as error:
                problems.append(error.info())
        reports.sort(key=lambda stored: (stored.report.created, stored.id), reverse=True)
        return Shelf(tuple(reports), tuple(problems))

    def load(self, report_id: str) -> StoredReport:
        file = self._file(report_id)
        try:
            stored: dict[str, Any] = read_json(file, limit=LARGEST)
            if stored["version"] != VERSION:
                raise ReportError(
                    f"{file} has format version {stored['version']}; supported: {VERSION}.",
                    "Open it with the Inferdeck version that wrote it.",
                )
            name, notes, inner = str(stored["name"]), str(stored["notes"]), stored["report"]
        except CheckpointError as error:
            raise ReportError(error.cause, "Delete the report and evaluate again.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise ReportError(
                f"Report {file} is damaged: {error!r}.", "Delete it and evaluate again."
            ) from error
        try:
            return StoredReport(report_id, name, from_json(inner), notes)
        except ReportError as error:
            raise ReportError(f"{file}: {error.cause}", error.remedy) from error

    def add(self, report: EvaluationReport, name: str = "") -> StoredReport:
        """Save a new report; its default name is the model and its precision."""
        digits = re.sub(r"\D", "", report.created)[:14]
        report_id = f"{digits[:8]}-{digits[8:]}-{uuid.uuid4().hex[:8]}"
        own = clean_name(name, LONGEST_NAME)
        stored = StoredReport(report_id, own or title_of(report), report)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / report_id).mkdir(mode=0o700)
        except OSError as error:
            raise ReportError(
                f"Cannot write to {self.folder}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error
        self._write(stored)
        return stored

    def rename(self, report_id: str, name: str) -> StoredReport:
        cleaned = clean_name(name, LONGEST_NAME)
        if not cleaned:
            raise ReportError("The report has no name.", "Enter a name.")
        return self._write(replace(self.load(report_id), name=cleaned))

    def _write(self, stored: StoredReport) -> StoredReport:
        entry: dict[str, Any] = {
            "version": VERSION,
            "name": stored.name,
            "notes": stored.notes,
            "report": to_json(stored.report),
        }
        write_report(self._file(stored.id), json.dumps(entry, indent=1) + "\n")
        return stored

    def _file(self, report_id: str) -> Path:
        if not _ID.fullmatch(report_id):
            raise ReportError(f"Report {report_id!r} not found.", "Select one from the list.")
        return self.folder / report_id / _FILE
