"""Titles of reports, and reports stored with their origin. No Qt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from app.features.quantize.layers import LayerRow, read_result, rows_of
from app.features.quantize.run import elapsed
from app.features.quantize.texts import BUILTIN_TEXTS
from app.storage.model_sources import is_starter, model_title
from app.storage.report_export import write_report
from app.storage.report_metrics import Form, facts_title, text_of
from app.storage.report_store import ReportStore, StoredReport
from engine.evaluate.report import EvaluationReport, ModelFacts
from widgets.live.figures import precision_name


def when(report: EvaluationReport) -> str:
    """ "21 Nov 2026, 13:04" in the user's time."""
    try:
        return datetime.fromisoformat(report.created).astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return report.created


def subtitle(report: EvaluationReport) -> str:
    """Reference, text, time and duration."""
    parts = []
    if report.reference is not None:
        parts.append(f"vs. {side(report.reference)}")
    if report.text is not None:
        cut = " (truncated)" if report.text.is_cut else ""
        parts.append(f"{text_title(report.text.name)}: {report.text.num_scored:,} tokens{cut}")
    parts += [when(report), f"duration {elapsed(report.duration_s)}"]
    return " · ".join(parts)


def side(facts: ModelFacts) -> str:
    """ "Qwen3-0.6B, BF16, KV INT8": the quantization of the weights, else the dtype."""
    return facts_title(facts, facts_name(facts), precision_name)


def facts_name(facts: ModelFacts) -> str:
    """The model's name; the demo model has a title of its own."""
    return model_title(facts.path) if is_starter(facts.path) else facts.name


def text_title(name: str) -> str:
    """Title of a built-in text, or the file name."""
    return next((text.title for text in BUILTIN_TEXTS if text.key == name), name or "text")


def list_line(report: EvaluationReport) -> str:
    """Time and main figure, for the list."""
    parts = [when(report)]
    if report.divergence is not None:
        parts.append(f"KL {text_of(Form.SMALL, report.divergence.kl.mean)}")
    elif report.candidate_loss is not None:
        parts.append(f"perplexity {report.candidate_loss.perplexity:.3f}")
    return " · ".join(parts)


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


def keep(store: ReportStore, report: EvaluationReport, commands: tuple[str, ...]) -> StoredReport:
    """Store a report with its origin. Raises ReportError where it cannot be written."""
    stored = store.add(report, side(report.candidate))
    quantization = read_result(Path(report.candidate.path))
    text = json.dumps({"commands": commands, "quantization": quantization}, indent=1)
    write_report(store.folder / stored.id / _FILE, text + "\n")
    return stored


def made_of(store: ReportStore, stored: StoredReport) -> Made:
    """The stored origin; of a missing or damaged file what the model folder has."""
    try:
        found = json.loads((store.folder / stored.id / _FILE).read_text(encoding="utf-8"))
        made = Made(tuple(map(str, found["commands"])), found["quantization"])
        made.layers  # noqa: B018 - raises where it is damaged
    except (OSError, ValueError, KeyError, TypeError):
        return Made(quantization=read_result(Path(stored.report.candidate.path)))
    return made
