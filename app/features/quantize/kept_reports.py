"""What is said of a report around its figures. No Qt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from app.features.quantize.layers import LayerRow, read_result, rows_of
from app.features.quantize.run import elapsed
from app.features.quantize.texts import BUILTIN_TEXTS
from app.storage.model_sources import is_starter, model_title
from app.storage.report_export import write_whole
from app.storage.report_metrics import Form, text_of
from app.storage.report_store import ReportStore, Shelf, StoredReport
from app.storage.trash import Trash, Trashed, TrashError
from engine.evaluate.report import EvaluationReport, ModelFacts


def when(report: EvaluationReport) -> str:
    """ "21 Nov 2026, 13:04" in the user's time."""
    try:
        return datetime.fromisoformat(report.created).astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return report.created


def subtitle(report: EvaluationReport) -> str:
    """Against what, on what, when."""
    parts = []
    if report.reference is not None:
        parts.append(f"against {side(report.reference)}")
    if report.text is not None:
        cut = " (a part)" if report.text.is_cut else ""
        parts.append(f"{text_title(report.text.name)}: {report.text.num_scored:,} tokens{cut}")
    parts += [when(report), f"took {elapsed(report.duration_s)}"]
    return " · ".join(parts)


def side(facts: ModelFacts) -> str:
    """ "Qwen3-0.6B, bfloat16, KV int8": how the weights are held, else the dtype."""
    parts = [facts_name(facts), facts.quantization or facts.dtype]
    kv = facts.config.get("kv_cache_dtype")
    if kv not in (None, "", "auto"):
        parts.append(f"KV {kv}")
    return ", ".join(parts)


def facts_name(facts: ModelFacts) -> str:
    """The starter model's folder tells nobody what it is."""
    return model_title(facts.path) if is_starter(facts.path) else facts.name


def text_title(name: str) -> str:
    """A text of the program by its title, others by their file's name."""
    return next((text.title for text in BUILTIN_TEXTS if text.key == name), name or "text")


def list_line(report: EvaluationReport) -> str:
    """One line for a list."""
    parts = [when(report)]
    if report.divergence is not None:
        parts.append(f"KL {text_of(Form.SMALL, report.divergence.kl.mean)}")
    elif report.candidate_loss is not None:
        parts.append(f"perplexity {report.candidate_loss.perplexity:.3f}")
    return " · ".join(parts)


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
