"""Results on disk, a line of JSON each, appended as they come: what a run was stopped in stays."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu.bench.cell import Result

CELLS = "cells.jsonl"
REPORT = "report.json"
_FIELDS = {field.name for field in dataclasses.fields(Result)}


class Store:
    """The newest result of every cell, of this run and of those before it in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._results: dict[str, Result] = {}
        self._take(_lines(folder / CELLS))

    @property
    def results(self) -> list[Result]:
        return list(self._results.values())

    def get(self, name: str) -> Result | None:
        return self._results.get(name)

    def is_finished(self, name: str) -> bool:
        """Whether a cell need not run again; one that failed is tried again."""
        result = self._results.get(name)
        return result is not None and result.is_ok

    def add(self, result: Result) -> None:
        self._results[result.name] = result
        with (self.folder / CELLS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")

    def forget(self, pattern: str) -> None:
        """Cells whose names match `pattern` are run again."""
        for name in fnmatch.filter(self._results, pattern):
            del self._results[name]

    def merge(self, source: Path) -> None:
        """Take over what another run finished: its folder, its report or its lines."""
        file = source / CELLS if source.is_dir() else source
        found = _lines(file) if file.suffix == ".jsonl" else _cells_of_report(file)
        for values in found:
            result = _result(values)
            if result is not None and result.is_ok and not self.is_finished(result.name):
                self.add(result)

    def _take(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for values in lines:
            result = _result(values)
            if result is not None:
                self._results[result.name] = result


def _result(values: Mapping[str, Any]) -> Result | None:
    known = {name: value for name, value in values.items() if name in _FIELDS}
    try:
        return Result(**known)
    except TypeError:  # a line of another version, without what this one needs
        return None


def _lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of lines; a last line that was cut off is left out."""
    if not file.is_file():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(values, dict):
            found.append(values)
    return found


def _cells_of_report(file: Path) -> list[dict[str, Any]]:
    report = json.loads(file.read_text(encoding="utf-8"))
    return list(report.get("cells", ()))
