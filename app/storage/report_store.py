"""Saved evaluation reports.

evaluations/20260102-030405-1a2b3c4d/report.json    {"version", "name", "notes", "report"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.storage.record_folder import RecordFolder, clean, new_id
from app.storage.report_metrics import title_of
from engine.errors import ErrorInfo
from engine.evaluate.report import EvaluationReport, ReportError, from_json, to_json


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


class ReportStore(RecordFolder[StoredReport]):
    WHAT = "report"

    def list(self) -> Shelf:
        reports, problems = self.read_all()
        reports.sort(key=lambda stored: (stored.report.created, stored.id), reverse=True)
        return Shelf(tuple(reports), tuple(problems))

    def add(self, report: EvaluationReport, name: str = "") -> StoredReport:
        """Save a new report; its default name is the model and its precision."""
        return self.save(as_stored(report, name))

    def from_stored(self, record_id: str, stored: Mapping[str, Any]) -> StoredReport:
        name, notes, inner = str(stored["name"]), str(stored["notes"]), stored["report"]
        try:
            return StoredReport(record_id, name, from_json(inner), notes)
        except ReportError as error:
            raise ReportError(f"{self._file(record_id)}: {error.cause}", error.remedy) from error

    def to_stored(self, record: StoredReport) -> dict[str, Any]:
        return {
            "name": record.name, "notes": record.notes, "report": to_json(record.report),
        }  # fmt: skip

    def renamed(self, record: StoredReport, name: str) -> StoredReport:
        cleaned = clean(name)
        if not cleaned:
            raise ReportError("The report has no name.", "Enter a name.")
        return replace(record, name=cleaned)


def as_stored(report: EvaluationReport, name: str = "") -> StoredReport:
    """A new report with an id, to be saved."""
    return StoredReport(new_id(report.created), clean(name) or title_of(report), report)
