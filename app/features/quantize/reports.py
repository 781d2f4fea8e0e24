"""Stored reports: their titles and origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from app.features.quantize.layers import LayerRow, read_result, rows_of
from app.features.quantize.texts import BUILTIN_TEXTS
from app.storage.model_sources import is_starter, model_title
from app.storage.report_export import write_report
from app.storage.report_metrics import facts_title
from app.storage.report_store import ReportStore, StoredReport
from engine.errors import CheckpointError
from engine.evaluate.report import EvaluationReport, ModelFacts
from engine.json_file import read_json
from engine.units import duration_text


def when(created: str) -> str:
    """ "21 Nov 2026, 13:04" in the user's time, of UTC in ISO 8601."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return created


def subtitle(report: EvaluationReport) -> str:
    """Reference, text, time and duration."""
    parts = []
    if report.reference is not None:
        parts.append(f"vs. {side(report.reference)}")
    if report.text is not None:
        cut = " (truncated)" if report.text.is_cut else ""
        parts.append(f"{text_title(report.text.name)}: {report.text.num_scored:,} tokens{cut}")
    parts += [when(report.created), f"duration {duration_text(report.duration_s)}"]
    return " · ".join(parts)


def side(facts: ModelFacts) -> str:
    """ "Qwen3-0.6B, BF16, KV INT8": the quantization of the weights, else the dtype."""
    return facts_title(facts, facts_name(facts))


def facts_name(facts: ModelFacts) -> str:
    """Model name for display; the demo model has its own."""
    return model_title(facts.path) if is_starter(facts.path) else facts.name


def text_title(name: str) -> str:
    """Title of a built-in text, or the file name."""
    return next((text.title for text in BUILTIN_TEXTS if text.key == name), name or "text")


_FILE = "made.json"


@dataclass(frozen=True, slots=True)
class Made:
    """Origin of a report. `commands`: command lines that repeat it. `quantization`: the result file
    of the measured model, if it was quantized here."""

    commands: tuple[str, ...] = ()
    quantization: Mapping[str, Any] | None = None

    @property
    def layers(self) -> list[LayerRow]:
        return rows_of(self.quantization["layers"]) if self.quantization is not None else []


def save(store: ReportStore, stored: StoredReport, commands: tuple[str, ...]) -> None:
    """Write a new report with its origin. Raises ReportError."""
    store.save(stored)
    quantization = read_result(Path(stored.report.candidate.path))
    text = json.dumps({"commands": commands, "quantization": quantization}, indent=1)
    write_report(store.folder / stored.id / _FILE, text + "\n")


def made_of(store: ReportStore, stored: StoredReport) -> Made:
    """The stored origin; if missing or damaged, the one found in the model folder."""
    try:
        found: dict[str, Any] = read_json(store.folder / stored.id / _FILE)
        made = Made(tuple(map(str, found["commands"])), found["quantization"])
        made.layers  # noqa: B018 - raises where it is damaged
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError):
        return Made(quantization=read_result(Path(stored.report.candidate.path)))
    return made
