"""Runs of reports and of quantizations as records. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import msgspec

from app.features.quantize.plan import model_name, recipe_label
from app.features.quantize.reports import facts_name
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


def result_of(details: Mapping[str, Any]) -> QuantizeResult:
    """The result that `of_quantization` kept. Raises ValueError for other details."""
    counts = details.get("calibration", {})
    hook = lambda kind, value: kind(value)
    return msgspec.convert({**details, **counts}, QuantizeResult, strict=False, dec_hook=hook)
