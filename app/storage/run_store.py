"""Saved runs other than evaluation reports: one folder with a JSON file each.

    runs/20260102-030405-1a2b3c4d/run.json    {"version", "run"}

A folder each, so that `app.storage.trash` can delete one with undo. Reports are kept by
`app.storage.report_store`.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from app.storage.profiles import clean_name
from app.storage.report_export import write_report
from app.storage.report_store import LARGEST, LONGEST_NAME
from app.storage.run_records import RunRecord
from engine.errors import CheckpointError, ErrorInfo
from engine.evaluate.report import ReportError
from engine.json_file import read_json

VERSION = 1
_FILE = "run.json"
_ID = re.compile(r"[0-9A-Za-z-]+")


class RunStore:
    """Runs in `folder`, which need not exist yet. Every change is on disk when a method returns,
    all or nothing. Failed reads and writes raise ReportError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> tuple[list[RunRecord], list[ErrorInfo]]:
        """All runs, and the errors of unreadable ones."""
        runs: list[RunRecord] = []
        problems: list[ErrorInfo] = []
        found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for entry in found:
            if not (entry / _FILE).is_file() or not _ID.fullmatch(entry.name):
                continue  # moved aside, or not ours
            try:
                runs.append(self.load(entry.name))
            except ReportError as error:
                problems.append(error.info())
        return runs, problems

    def load(self, run_id: str) -> RunRecord:
        file = self._file(run_id)
        try:
            stored: dict[str, Any] = read_json(file, limit=LARGEST)
            if stored["version"] != VERSION:
                raise ReportError(
                    f"{file} has format version {stored['version']}; supported: {VERSION}.",
                    "Open it with the Inferdeck version that wrote it.",
                )
            return replace(msgspec.convert(stored["run"], RunRecord), id=run_id)
        except CheckpointError as error:
            raise ReportError(error.cause, "Delete the run and repeat it.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise ReportError(
                f"Run {file} is damaged: {error!r}.", "Delete it and repeat the run."
            ) from error

    def add(self, run: RunRecord) -> RunRecord:
        """Save a new run under a new id."""
        digits = re.sub(r"\D", "", run.created)[:14]
        kept = replace(run, id=f"{digits[:8]}-{digits[8:]}-{uuid.uuid4().hex[:8]}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / kept.id).mkdir(mode=0o700)
        except OSError as error:
            raise ReportError(
                f"Cannot write to {self.folder}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error
        return self._write(kept)

    def rename(self, run_id: str, name: str) -> RunRecord:
        """Give it a name of the user's; an empty one takes it back."""
        return self._write(replace(self.load(run_id), name=clean_name(name, LONGEST_NAME)))

    def _write(self, run: RunRecord) -> RunRecord:
        entry = {"version": VERSION, "run": msgspec.to_builtins(run)}
        write_report(self._file(run.id), json.dumps(entry, indent=1) + "\n")
        return run

    def _file(self, run_id: str) -> Path:
        if not _ID.fullmatch(run_id):
            raise ReportError(f"Run {run_id!r} not found.", "Select one from the table.")
        return self.folder / run_id / _FILE
