"""The figures of a report, each declared once: the command line's table, comparisons and exports
are made from this list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.units import format_bytes
from engine.evaluate.report import (
    Divergence,
    EvaluationReport,
    ModelFacts,
    ReportError,
    Similarity,
    Speed,
)

NOTHING = "–"

Value = Callable[[EvaluationReport], float | None]


class Form(StrEnum):
    """How a value is written."""

    NUMBER = "number"
    SMALL = "small number"  # over many orders of magnitude
    SHARE = "share"
    CLOSE_SHARE = "share near 1"
    CHANGE = "change"
    BYTES = "bytes"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Metric:
    """`value` is the candidate's, or of both together; `reference` the same of the reference.
    better: -1 where less is better, 1 where more is, 0 where neither. `unit` is for exports, in
    which values are plain numbers (shares 0 to 1)."""

    key: str
    label: str
    form: Form
    better: int
    value: Value
    reference: Value = lambda report: None
    unit: str = ""


def text_of(form: Form, value: float | None) -> str:
    """The value as people read it; an en dash where there is none."""
    if value is None:
        return NOTHING
    if form is Form.BYTES:
        return format_bytes(value)
    if form is Form.COUNT:
        return f"{value:,.0f}"
    if form is Form.SHARE:
        return f"{value:.2%}"
    if form is Form.CLOSE_SHARE:
        return f"{value:.3%}"
    if form is Form.CHANGE:
        return f"{value:+.2%}".replace("-", "−")
    if form is Form.SMALL:
        return "0" if value == 0 else f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.2e}"
    digits = 0 if abs(value) >= 10_000 else 1 if abs(value) >= 1000 else 3
    return f"{value:,.{digits}f}"


def _divergence(pick: Callable[[Divergence], float | None]) -> Value:
    return lambda report: None if report.divergence is None else pick(report.divergence)


def _similarity(pick: Callable[[Similarity], float | None]) -> Value:
    return _divergence(lambda d: None if d.similarity is None else pick(d.similarity))


def _both(pick: Callable[[Speed], float]) -> tuple[Value, Value]:
    def of_candidate(report: EvaluationReport) -> float | None:
        speed = report.candidate.speed
        return None if speed is None else pick(speed)

    def of_reference(report: EvaluationReport) -> float | None:
        speed = None if report.reference is None else report.reference.speed
        return None if speed is None else pick(speed)

    return of_candidate, of_reference


METRICS = (
    Metric(
        "perplexity", "Perplexity", Form.NUMBER, -1,
        lambda r: r.candidate_loss.perplexity if r.candidate_loss else None,
        lambda r: r.reference_loss.perplexity if r.reference_loss else None,
    ),
    Metric("perplexity_change", "Perplexity, change", Form.CHANGE, -1,
           lambda r: r.perplexity_change),
    Metric(
        "bits_per_byte", "Bits per byte", Form.NUMBER, -1,
        lambda r: r.candidate_loss.bits_per_byte if r.candidate_loss else None,
        lambda r: r.reference_loss.bits_per_byte if r.reference_loss else None,
    ),
    Metric("kl_mean", "KL divergence, mean", Form.SMALL, -1,
           _divergence(lambda d: d.kl.mean), unit="nats"),
    Metric("kl_p50", "KL divergence, p50", Form.SMALL, -1,
           _divergence(lambda d: d.kl.p50), unit="nats"),
    Metric("kl_p90", "KL divergence, p90", Form.SMALL, -1,
           _divergence(lambda d: d.kl.p90), unit="nats"),
    Metric("kl_p99", "KL divergence, p99", Form.SMALL, -1,
           _divergence(lambda d: d.kl.p99), unit="nats"),
    Metric("kl_max", "KL divergence, max", Form.SMALL, -1,
           _divergence(lambda d: d.kl.max), unit="nats"),
    Metric("top1_agreement", "Same most probable token", Form.SHARE, 1,
           _divergence(lambda d: d.top1_agreement)),
    Metric("similarity_mean", "Similarity of final states, mean", Form.CLOSE_SHARE, 1,
           _similarity(lambda s: s.mean)),
    Metric("similarity_p1", "Similarity of final states, p1", Form.CLOSE_SHARE, 1,
           _similarity(lambda s: s.p1)),
    Metric("mean_abs_logprob_change", "|Δ log p| of the true token", Form.SMALL, -1,
           _divergence(lambda d: d.mean_abs_logprob_change), unit="nats"),
    Metric("identical_answers", "Identical answers", Form.SHARE, 1,
           lambda r: r.answers.identical_share if r.answers else None),
    Metric("equal_tokens", "Tokens before the first difference", Form.SHARE, 1,
           lambda r: r.answers.mean_equal_share if r.answers else None),
    Metric(
        "weights_bytes", "Weights", Form.BYTES, -1,
        lambda r: r.candidate.weights_bytes,
        lambda r: r.reference.weights_bytes if r.reference else None, "bytes",
    ),
    Metric(
        "kv_bytes_per_token", "KV cache per token", Form.BYTES, -1,
        lambda r: r.candidate.kv_bytes_per_token,
        lambda r: r.reference.kv_bytes_per_token if r.reference else None, "bytes",
    ),
    Metric("decode_tokens_per_s", "Decode, one request, tokens per second", Form.NUMBER, 1,
           *_both(lambda s: s.decode), "tokens/s"),
    Metric("prefill_tokens_per_s", "Prefill, one request, tokens per second", Form.NUMBER, 1,
           *_both(lambda s: s.prefill), "tokens/s"),
)  # fmt: skip
"""In the order in which a person would read them."""


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
    """`cautions`: why these reports are hard to compare."""

    titles: tuple[str, ...]
    rows: tuple[MetricRow, ...]
    cautions: tuple[str, ...]


def compare(reports: Sequence[EvaluationReport], titles: Sequence[str] | None = None) -> Comparison:
    """At least two reports; rows that none of them has are left out."""
    if len(reports) < 2:
        raise ReportError(
            f"Only {len(reports)} report is selected.", "Select two or more."
        )
    names = tuple(titles) if titles is not None else tuple(map(title_of, reports))
    rows = [MetricRow(metric, tuple(map(metric.value, reports))) for metric in METRICS]
    present = tuple(row for row in rows if any(value is not None for value in row.values))
    return Comparison(names, present, cautions(reports))


def cautions(reports: Sequence[EvaluationReport]) -> tuple[str, ...]:
    """Why these reports are hard to compare."""
    found = []
    texts = [r.text for r in reports if r.text is not None]
    if len({t.sha256 for t in texts}) > 1:
        found.append("The texts differ.")
    elif len({(t.num_scored, t.context_length, t.stride) for t in texts}) > 1:
        found.append("Context length, stride or number of tokens differ.")
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
