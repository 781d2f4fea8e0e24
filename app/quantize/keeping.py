"""The reports that are kept, and what belongs to them and to no report of the command line's: how
it was made. No Qt.

    evaluations/20260102-030405-1a2b3c4d/report.json    of app.quality.store
                                         made.json      {"commands": [], "quantization": {}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.hub.trash import Trash, Trashed, TrashError
from app.quality.export import write_whole
from app.quality.store import ReportStore, Shelf, StoredReport
from app.quantize.layers import LayerRow, read_result, rows_of
from app.quantize.report_words import side
from engine.evaluation.report import EvaluationReport

_FILE = "made.json"


@dataclass(frozen=True, slots=True)
class Made:
    """`commands`: the command lines that do the same again. `quantization`: what is stored beside
    the weights of the model that was measured, where they were made here."""

    commands: tuple[str, ...] = ()
    quantization: Mapping[str, Any] | None = None

    @property
    def layers(self) -> list[LayerRow]:
        return rows_of(self.quantization["layers"]) if self.quantization is not None else []


class Keeper:
    """The store, its trash, and `Made` beside every report."""

    def __init__(self, store: ReportStore, trash: Trash) -> None:
        self._store, self._trash = store, trash

    def list(self) -> Shelf:
        return self._store.list()

    def keep(self, report: EvaluationReport, commands: tuple[str, ...]) -> StoredReport:
        """Raises ReportError where it cannot be written."""
        stored = self._store.add(report, side(report.candidate))
        quantization = read_result(Path(report.candidate.path))
        text = json.dumps({"commands": commands, "quantization": quantization}, indent=1)
        write_whole(self._folder(stored) / _FILE, text + "\n")
        return stored

    def made(self, stored: StoredReport) -> Made:
        """What is known; a file that is not there or damaged is nothing known."""
        try:
            found = json.loads((self._folder(stored) / _FILE).read_text(encoding="utf-8"))
            made = Made(tuple(map(str, found["commands"])), found["quantization"])
            made.layers  # noqa: B018 - whether it can be read
        except (OSError, ValueError, KeyError, TypeError):
            return Made(quantization=read_result(Path(stored.report.candidate.path)))
        return made

    def rename(self, stored: StoredReport, name: str) -> StoredReport:
        return self._store.rename(stored.id, name)

    def delete(self, stored: StoredReport) -> Trashed:
        """Raises TrashError."""
        return self._store.delete(stored.id, self._trash)

    def restore(self, entry: Trashed) -> None:
        """Raises TrashError."""
        self._trash.restore(entry)

    def purge(self, entries: Iterable[Trashed]) -> None:
        """For good; what cannot be removed waits for the next start."""
        for entry in entries:
            with suppress(TrashError):
                self._trash.purge(entry)

    def _folder(self, stored: StoredReport) -> Path:
        return self._store.folder / stored.id
