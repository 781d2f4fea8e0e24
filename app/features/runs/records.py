"""Runs of reports and of quantizations as records. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import msgspec

from app.features.quantize.plan import model_name, recipe_label
from app.features.quantize.reports import facts_name
from app.features.tune.verdict import Observed, Verdict
from app.storage.report_metrics import METRICS, precision_of
from app.storage.report_store import StoredReport
from app.storage.run_records import Kind, Measured, RunRecord, RunSide
from engine.evaluate.report import EvaluationReport
from engine.quantize.recipe import QuantizeResult


def of_report(stored: StoredReport) -> RunRecord:
    """The run of an evaluation report. Where its models differ, a side is named with its model."""
    report, reference = stored.report, stored.report.reference
    name, precision = facts_name(report.candidate), precision_of(report.candidate)
    sides = [RunSide(precision, _figures(report, is_reference=False))]
    if reference is not None:
        own = precision_of(reference)
        other = own if facts_name(reference) == name else f"{facts_name(reference)}, {own}"
        sides.insert(0, RunSide(other, _figures(report, is_reference=True)))
    return RunRecord(
        stored.id, Kind.EVALUATE, name, precision, report.created, tuple(sides),
        name=stored.name, is_report=True,
    )  # fmt: skip


def _figures(report: EvaluationReport, is_reference: bool) -> dict[str, Measured]:
    found = ((metric.key, metric.side(report, is_reference)) for metric in METRICS)
    return {key: value for key, value in found if value is not None}


def of_quantization(result: QuantizeResult, created: str, source: str) -> RunRecord:
    """The run of a finished quantization. `source`: the folder of the model."""
    errors = [x.output_error for x in result.layers if x.output_error is not None] or [
        linear.weight_error for layer in result.layers for linear in layer.linears
    ]
    before = {"disk_bytes": Measured(result.bytes_before)}
    after = {"disk_bytes": Measured(result.bytes_after), "duration_s": Measured(result.seconds)}
    if errors:
        after["layer_error"] = Measured(fmean(errors))
    precision = recipe_label(result.recipe)
    return RunRecord(
        "", Kind.QUANTIZE, model_name(source), precision, created,
        (RunSide("original", before), RunSide(precision, after)), details=result.as_json(),
    )  # fmt: skip


_OF_CHANGE = {"ttft": ("ttft", 1e-3), "itl": ("itl", 1e-3), "output": ("total_tokens_per_s", 1.0)}
"""Metrics of a change as those of runs, and what turns one into the other: ms are stored as s."""


def of_change(
    text: str, result: str, verdicts: Sequence[Verdict], model: str, precision: str
) -> RunRecord:
    """The run of a change of settings, made now. result: what it did, in words."""
    sides = tuple(
        RunSide(title, {
            key: value
            for verdict in verdicts
            for key, factor in [_OF_CHANGE[verdict.key]]
            if (value := _observed(getattr(verdict, title), factor)) is not None
        })
        for title in ("before", "after")
    )  # fmt: skip
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return RunRecord(
        "", Kind.CHANGE, model, precision, created, sides, name=text,
        details={"change": text, "result": result},
    )  # fmt: skip


def _observed(found: Observed, factor: float) -> Measured | None:
    samples = tuple(factor * value for value in found.values.tolist())
    return Measured(factor * found.level, samples) if samples and found.level is not None else None


def result_of(details: Mapping[str, Any]) -> QuantizeResult:
    """The result that `of_quantization` kept. Raises ValueError for other details."""
    counts = details.get("calibration", {})
    hook = lambda kind, value: kind(value)
    return msgspec.convert({**details, **counts}, QuantizeResult, strict=False, dec_hook=hook)
