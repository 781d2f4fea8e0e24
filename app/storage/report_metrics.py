"""The figures of a report, each declared once: tables, comparisons and exports are made from this
list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.storage.intervals import spread_text
from app.storage.run_records import Measured
from engine.evaluate.report import EvaluationReport, ModelFacts
from engine.units import (
    NOTHING,
    bytes_text,
    duration_text,
    precision_name,
    setting_text,
)


class Form(StrEnum):
    """How a value is written."""

    NUMBER = "number"
    COUNT = "count"
    SMALL = "small"  # over many orders of magnitude
    SHARE = "share"
    CLOSE_SHARE = "close_share"
    CHANGE = "change"
    BYTES = "bytes"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class Metric:
    """`path`: attributes from a report to the value, which is the candidate's or of both models; ""
    where reports have none. better: -1 if less is better, 1 if more is, else 0. `unit` is for
    exports, in which values are plain numbers (shares 0 to 1)."""

    key: str
    label: str
    form: Form
    better: int
    path: str
    unit: str = ""

    def value(self, report: EvaluationReport) -> float | None:
        return _value_at(report, self.path)

    @property
    def is_repeated(self) -> bool:
        """Whether it is measured several times, so that its spread is known."""
        return self.unit in ("tokens/s", "s")

    @property
    def is_leading(self) -> bool:
        """Whether its change has a colour. One metric of a quantity has: perplexity, not bits per
        byte."""
        return bool(self.better) and self.key in LEADING

    def side(self, report: EvaluationReport, is_reference: bool) -> Measured | None:
        """The value of the candidate or the reference, with the repeats it is the median of."""
        value = self.reference(report) if is_reference else self.value(report)
        if value is None or not self.is_repeated:
            return None if value is None else Measured(value)
        path = self.path.replace("candidate", "reference") if is_reference else self.path
        return Measured(value, _at(report, f"{path}_samples"))

    def reference(self, report: EvaluationReport) -> float | None:
        """The reference's value, if it has its own."""
        path = self.path.replace("candidate", "reference")
        return _value_at(report, path) if path != self.path else None


def _value_at(report: EvaluationReport, path: str) -> float | None:
    found: float | None = _at(report, path) if path else None
    return found


def _at(report: EvaluationReport, path: str) -> Any:
    found: Any = report
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def text_of(form: Form, value: float | None) -> str:
    """The value as text; an en dash for None."""
    if value is None:
        return NOTHING
    if form is Form.BYTES:
        return bytes_text(value)
    if form is Form.COUNT:
        return f"{value:,.0f}"
    if form is Form.SHARE:
        return f"{value:.2%}"
    if form is Form.CLOSE_SHARE:
        return f"{value:.3%}"
    if form is Form.CHANGE:
        return f"{value:+.2%}".replace("-", "−")
    if form is Form.DURATION:
        return duration_text(value)
    if form is Form.SMALL:
        return "0" if value == 0 else f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.2e}"
    if 0 < abs(value) < 0.1:  # where three decimals are one or two digits
        return f"{value:#.3g}"
    digits = 0 if abs(value) >= 10_000 else 1 if abs(value) >= 1000 else 3
    return f"{value:,.{digits}f}"


def measured_text(metric: Metric, value: Measured | None) -> str:
    """ "30.4 ±3 %": with its spread, where it was repeated."""
    if value is None:
        return NOTHING
    text = text_of(metric.form, value.value).replace("%", " %")
    if not metric.is_repeated:
        return text
    text = f"{value.value:,.1f}" if metric.unit == "tokens/s" else text
    return f"{text} {spread_text(value.spread)}".rstrip()


METRICS = (
    Metric("perplexity", "Perplexity", Form.NUMBER, -1, "candidate_loss.perplexity"),
    Metric("perplexity_change", "Perplexity, change", Form.CHANGE, -1, "perplexity_change"),
    Metric("bits_per_byte", "Bits per byte", Form.NUMBER, -1, "candidate_loss.bits_per_byte"),
    *(
        Metric(
            f"kl_{name}", f"KL divergence, {name}", Form.SMALL, -1, f"divergence.kl.{name}", "nats"
        )
        for name in ("mean", "p50", "p90", "p99", "max")
    ),
    Metric("top1_agreement", "Top-1 agreement", Form.SHARE, 1,
           "divergence.top1_agreement"),
    *(
        Metric(
            f"similarity_{name}", f"Final hidden state similarity, {name}", Form.CLOSE_SHARE, 1,
            f"divergence.similarity.{name}",
        )
        for name in ("mean", "p1")
    ),
    Metric("mean_abs_logprob_change", "|Δ log p| of the target token", Form.SMALL, -1,
           "divergence.mean_abs_logprob_change", "nats"),
    Metric("identical_answers", "Identical answers", Form.SHARE, 1, "answers.identical_share"),
    Metric("equal_tokens", "Tokens before the first difference", Form.SHARE, 1,
           "answers.mean_equal_share"),
    Metric("weights_bytes", "Weights", Form.BYTES, -1, "candidate.weights_bytes", "bytes"),
    Metric("kv_bytes_per_token", "KV cache per token", Form.BYTES, -1,
           "candidate.kv_bytes_per_token", "bytes"),
    *(
        Metric(
            f"{name}_tokens_per_s", f"{name.title()}, one request, tokens per second",
            Form.NUMBER, 1, f"candidate.speed.{name}", "tokens/s",
        )
        for name in ("decode", "prefill")
    ),
)  # fmt: skip
"""Those of a report, in reading order."""

RUN_METRICS = (
    *METRICS,
    Metric("ttft", "TTFT", Form.DURATION, -1, "", "s"),
    Metric("itl", "ITL", Form.DURATION, -1, "", "s"),
    Metric("reply_tokens_per_s", "Decode, concurrent requests, tokens per second each",
           Form.NUMBER, 1, "", "tokens/s"),
    Metric("total_tokens_per_s", "Output, all requests, tokens per second",
           Form.NUMBER, 1, "", "tokens/s"),
    Metric("users", "Users under the goals", Form.COUNT, 1, ""),
    Metric("cost", "Cost per million output tokens", Form.NUMBER, -1, "", "per million tokens"),
    Metric("disk_bytes", "Size on disk", Form.BYTES, -1, "", "bytes"),
    Metric("layer_error", "Mean error per layer", Form.SHARE, -1, ""),
    Metric("duration_s", "Duration", Form.DURATION, 0, "", "s"),
)  # fmt: skip
"""Those of all kinds of runs."""

LEADING = {
    "perplexity", "kl_mean", "top1_agreement", "similarity_mean", "identical_answers",
    "weights_bytes", "kv_bytes_per_token", "decode_tokens_per_s", "prefill_tokens_per_s", "ttft",
    "itl", "users", "cost", "reply_tokens_per_s", "total_tokens_per_s", "disk_bytes", "layer_error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of every report, or of a report and its reference; None if not measured."""

    metric: Metric
    values: tuple[float | None, ...]


def metric_rows(
    reports: Sequence[EvaluationReport], *, with_reference: bool = False
) -> tuple[MetricRow, ...]:
    """The metrics that any report has. `with_reference`: first the values of the reference of the
    first report."""
    before = reports[:1] if with_reference else ()
    rows = (
        MetricRow(metric, (*map(metric.reference, before), *map(metric.value, reports)))
        for metric in METRICS
    )
    return tuple(row for row in rows if any(value is not None for value in row.values))


def cautions(reports: Sequence[EvaluationReport]) -> tuple[str, ...]:
    """Why these reports are hard to compare."""
    found = []
    texts = [r.text for r in reports if r.text is not None]
    if len({t.sha256 for t in texts}) > 1:
        found.append("The texts differ.")
    elif len({(t.num_scored, t.context_length, t.stride) for t in texts}) > 1:
        found.append("Context length, stride or token count differs.")
    references = {(r.reference.path, r.reference.dtype) for r in reports if r.reference}
    if len(references) > 1:
        found.append("The reference models differ: divergences are not comparable.")
    speeds = [r for r in reports if r.candidate.speed is not None]
    if len({(r.machine.get("cpu"), tuple(r.machine.get("gpus", ()))) for r in speeds}) > 1:
        found.append("The machines differ: speeds are not comparable.")
    elif len({r.candidate.config.get("num_threads") for r in speeds}) > 1:
        found.append("The thread counts differ: speeds are not comparable.")
    return tuple(found)


def title_of(report: EvaluationReport) -> str:
    """ "chat, BF16" or "chat-awq, AWQ, 4-bit, groups of 128, KV INT8": model and precision."""
    return facts_title(report.candidate)


def facts_title(facts: ModelFacts, name: str = "") -> str:
    """Model and precision. `name`: instead of the model's own."""
    return f"{name or facts.name or Path(facts.path).name}, {precision_of(facts)}"


def precision_of(facts: ModelFacts) -> str:
    """ "BF16", "AWQ, 4-bit, groups of 128", "INT8, KV FP8": quantization, else dtype; and the KV
    cache's if it differs."""
    name, comma, rest = (facts.quantization or facts.dtype).partition(", ")
    own, kv = precision_name(name) + comma + rest, facts.config.get("kv_cache_dtype")
    if kv in (None, "", "auto", "none"):
        return own
    text = setting_text(kv)
    return f"{own}, {text if ',' in text else f'KV {text}'}"
