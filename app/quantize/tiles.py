"""The leading figures of a report, in words. No Qt."""

from __future__ import annotations

from typing import NamedTuple

from app.quality.metrics import Form, text_of
from app.units import format_bytes
from engine.evaluation.report import EvaluationReport, ModelFacts

SIMILARITY_BAR = 0.99
"""The similarity of final embeddings that people quote as "no loss to speak of"."""


class Tile(NamedTuple):
    """`tone`: "better", "worse" or "muted", of the note."""

    label: str
    value: str
    note: str = ""
    tone: str = "muted"
    tip: str = ""


def tiles_of(report: EvaluationReport) -> list[Tile]:
    """In the order in which they matter; what was not measured is not there."""
    found = [_size(report), _perplexity(report), *_divergence(report), _speed(report)]
    if report.answers is not None:
        answers = report.answers
        value = f"{answers.num_identical} of {len(answers.pairs)}"
        note = f"{percent(answers.mean_equal_share)} of the tokens before they part"
        found.append(Tile("Identical answers", value, note))
    return [tile for tile in found if tile is not None]


def _size(report: EvaluationReport) -> Tile:
    size, ratio = report.candidate.weights_bytes, report.weights_ratio
    tip = "Measured in memory, of all weights"
    if report.reference is None or ratio is None:
        return Tile("Weights", format_bytes(size), tip=tip)
    before, kv = report.reference.weights_bytes, _kv_words(report.candidate, report.reference)
    if ratio == 1.0 and kv:
        per_token = format_bytes(report.candidate.kv_bytes_per_token)
        return Tile("KV cache per token", per_token, kv, "better")
    tone = "better" if ratio < 0.995 else "muted"
    return Tile(
        "Weights", format_bytes(size), f"{percent(ratio)} of {format_bytes(before)}", tone, tip
    )


def _kv_words(candidate: ModelFacts, reference: ModelFacts) -> str:
    before, now = reference.kv_bytes_per_token, candidate.kv_bytes_per_token
    return f"{percent(now / before)} of {format_bytes(before)}" if before and now < before else ""


def _perplexity(report: EvaluationReport) -> Tile | None:
    loss, change = report.candidate_loss, report.perplexity_change
    if loss is None:
        return None
    value = f"{loss.perplexity:,.3f}"
    if change is None or report.reference_loss is None:
        return Tile("Perplexity", value, f"{loss.bits_per_byte:.3f} bits per byte")
    before = report.reference_loss.perplexity
    tone = "worse" if change > 0.03 else "muted"
    return Tile("Perplexity", value, f"{signed(change)} of {before:,.3f}", tone)


def percent(share: float, decimals: int = 0) -> str:
    """ "97.8 %"."""
    return f"{100 * share:.{decimals}f}\u00a0%"


def signed(share: float) -> str:
    """ "+0.42 %", "−1.20 %"."""
    return f"{share:+.2%}".replace("-", "−").replace("%", "\u00a0%")


def _divergence(report: EvaluationReport) -> list[Tile]:
    found = report.divergence
    if found is None:
        return []
    p99 = "" if found.kl.p99 is None else f" · p99 {found.kl.p99:.3g}"
    mean_kl = text_of(Form.SMALL, found.kl.mean)
    tiles = [
        Tile("KL divergence, mean", mean_kl, f"p90 {found.kl.p90:.3g}{p99} nats",
             tip="KL(reference || model) per token"),
        Tile("Same top token", percent(found.top1_agreement, 1),
             f"of {found.kl.num_samples:,} tokens"),
    ]  # fmt: skip
    if found.similarity is not None:
        mean, p1 = found.similarity.mean, found.similarity.p1
        is_over = mean > SIMILARITY_BAR
        words = "over" if is_over else "under"
        lowest = "" if p1 is None else f" · p1\u00a0{percent(p1, 1)}"
        tiles.append(
            Tile(
                "Similarity of final states", percent(mean, 2),
                f"{words} the 99\u00a0% that is asked for{lowest}",
                "better" if is_over else "worse",
                "Cosine of what goes into the output head, mean over the tokens; over 99 % is "
                "what people quote as good",
            )
        )  # fmt: skip
    return tiles


def _speed(report: EvaluationReport) -> Tile | None:
    speed = report.candidate.speed
    if speed is None:
        return None
    before = report.reference.speed if report.reference is not None else None
    note = f"prefill {speed.prefill:,.0f}"
    tone = "muted"
    if before is not None:
        ratio = speed.decode / before.decode
        note = f"{ratio:.2f}× of {before.decode:,.1f} · {note}"
        tone = "better" if ratio > 1.02 else "worse" if ratio < 0.98 else "muted"
    return Tile("Decode, tokens per second", f"{speed.decode:,.1f}", note, tone,
                "One request alone, median of three runs")  # fmt: skip
