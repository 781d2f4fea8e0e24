"""Several reports side by side, as differences from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.quality.metrics import METRICS, Metric
from engine.evaluation.report import EvaluationReport, ModelFacts
from engine.evaluation.serial import ReportError


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of every report; None where a report has it not."""

    metric: Metric
    values: tuple[float | None, ...]

    def change(self, index: int) -> float | None:
        """Of report `index` over the first, as a share (0.01: one percent more); None where
        either is missing or the first is 0."""
        before, after = self.values[0], self.values[index]
        return (after - before) / abs(before) if before and after is not None else None

    def difference(self, index: int) -> float | None:
        before, after = self.values[0], self.values[index]
        return None if before is None or after is None else after - before

    @property
    def best(self) -> tuple[int, ...]:
        """The reports with the best value; empty where none is better than another."""
        present = [v for v in self.values if v is not None]
        if not self.metric.better or len(set(present)) < 2:
            return ()
        best = max(present) if self.metric.better > 0 else min(present)
        return tuple(i for i, v in enumerate(self.values) if v == best)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`cautions`: why figures of these reports say less about each other than they seem to."""

    titles: tuple[str, ...]
    rows: tuple[MetricRow, ...]
    cautions: tuple[str, ...]


def compare(reports: Sequence[EvaluationReport], titles: Sequence[str] | None = None) -> Comparison:
    """At least two reports; rows that none of them has are left out."""
    if len(reports) < 2:
        raise ReportError(
            f"{len(reports)} report was chosen to be compared.", "Choose two or more."
        )
    names = tuple(titles) if titles is not None else tuple(map(title_of, reports))
    rows = [MetricRow(metric, tuple(map(metric.value, reports))) for metric in METRICS]
    present = tuple(row for row in rows if any(value is not None for value in row.values))
    return Comparison(names, present, cautions(reports))


def cautions(reports: Sequence[EvaluationReport]) -> tuple[str, ...]:
    """What makes the reports hard to compare, in words."""
    found = []
    texts = [r.text for r in reports if r.text is not None]
    if len({t.sha256 for t in texts}) > 1:
        found.append("They were measured on different texts.")
    elif len({(t.num_scored, t.context_length, t.stride) for t in texts}) > 1:
        found.append("The text was cut differently: another context length, stride or number.")
    references = {(r.reference.path, r.reference.dtype) for r in reports if r.reference}
    if len(references) > 1:
        found.append("They have different references: divergences are from another model each.")
    speeds = [r for r in reports if r.candidate.speed is not None]
    if len({(r.machine.get("cpu"), tuple(r.machine.get("gpus", ()))) for r in speeds}) > 1:
        found.append("Speeds were measured on different machines.")
    elif len({r.candidate.config.get("num_threads") for r in speeds}) > 1:
        found.append("Speeds were measured with different numbers of threads.")
    return tuple(found)


def title_of(report: EvaluationReport) -> str:
    """ "chat, bfloat16" or "chat-awq, AWQ, 4 bits, groups of 128, KV int8": model and precision."""
    return facts_title(report.candidate)


def facts_title(facts: ModelFacts) -> str:
    """Model and precision: how the weights are held, else the dtype; and the KV cache where its
    precision is another."""
    parts = [facts.name or Path(facts.path).name, facts.quantization or facts.dtype]
    kv = facts.config.get("kv_cache_dtype")
    if kv not in (None, "", "auto"):
        parts.append(f"KV {kv}")
    return ", ".join(parts)
