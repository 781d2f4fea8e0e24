"""Saved runs other than evaluation reports.

runs/20260102-030405-1a2b3c4d/run.json    {"version", "run"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from app.storage.record_folder import RecordFolder, clean, new_id
from app.storage.run_records import RunRecord


class RunStore(RecordFolder[RunRecord]):
    WHAT = "run"

    def add(self, run: RunRecord) -> RunRecord:
        """Save a new run under a new id."""
        return self.save(with_id(run))

    def from_stored(self, record_id: str, stored: Mapping[str, Any]) -> RunRecord:
        return replace(msgspec.convert(stored["run"], RunRecord), id=record_id)

    def to_stored(self, record: RunRecord) -> dict[str, Any]:
        return {"run": msgspec.to_builtins(record)}

    def renamed(self, record: RunRecord, name: str) -> RunRecord:
        """An empty name restores the default."""
        return replace(record, name=clean(name))

    def listed(self, record: RunRecord) -> RunRecord:
        """Without the long details, such as replies: `load` has them."""
        short = {k: v for k, v in record.details.items() if isinstance(v, str | int | float)}
        return replace(record, details=short)


def with_id(run: RunRecord) -> RunRecord:
    return replace(run, id=new_id(run.created))
