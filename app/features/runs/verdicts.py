"""The result of a run, and of a difference, in a sentence. No Qt."""

from __future__ import annotations

from app.features.runs.difference import Difference, spread_of
from app.storage.intervals import ONE_RUN, WIDE, is_wide, spread_text
from app.storage.report_metrics import Form, text_of
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State
from engine.units import (
    bytes_text,
    change_text,
    factor_text,
    percent_text,
    rate_text,
)

TARGET = 0.99
"""Share of tokens with the reference's most probable token that counts as lossless."""
NOT_RECORDED = "spread not recorded"
_SPEEDS = (
    ("decode_tokens_per_s", "decode"), ("reply_tokens_per_s", "decode"),
    ("total_tokens_per_s", "throughput"),
)  # fmt: skip


def headline(run: RunRecord) -> str:
    """The leading figure."""
    if not run.sides or run.state in (State.FAILED, State.RUNNING):
        return ""
    place = run.details.get("best_side", -1)  # of a ladder, the last rung that is kept
    last = run.sides[place if place in range(len(run.sides)) else -1].figures
    if run.kind is Kind.QUANTIZE:
        return bytes_text(last["disk_bytes"].value) if "disk_bytes" in last else ""
    parts = []
    if "kl_mean" in last:
        parts.append(f"KL {text_of(Form.SMALL, last['kl_mean'].value)}")
    elif "perplexity" in last:
        parts.append(f"perplexity {last['perplexity'].value:,.3f}")
    for key in ("total_tokens_per_s", "decode_tokens_per_s", "reply_tokens_per_s"):
        if key in last:
            parts.append(_rate(last[key]))
            break
    return " · ".join(parts)


def verdict(run: RunRecord) -> str:
    """ "INT8: 1.42× faster decode (±3 %), top-1 agreement 99.1 %: passes (target 99 %)." """
    if run.state is State.FAILED or not run.sides:
        return run.cause
    if run.kind is Kind.QUANTIZE:
        return _of_quantization(run)
    if run.kind is Kind.BROADCAST:
        return _of_broadcast(run)
    if run.kind in (Kind.BENCH, Kind.LADDER):
        return str(run.details.get("answer", ""))
    if run.kind is Kind.CHANGE:
        return f"{run.details.get('change', run.title)}: {run.details.get('result', '')}."
    parts = between(run.sides[0], run.sides[-1]) if len(run.sides) > 1 else _alone(run.sides[0])
    last = run.sides[-1].figures
    if run.kind is Kind.COMPARE and "identical_answers" in last:
        parts.append(f"{percent_text(last['identical_answers'].value)} of the replies identical")
    if "top1_agreement" in last:
        share = last["top1_agreement"].value
        outcome = "passes" if share >= TARGET else "fails"
        parts.append(
            f"top-1 agreement {100 * share:.1f} %: {outcome} (target {percent_text(TARGET)})"
        )
    text = ", ".join(parts)
    text = f"{run.sides[-1].title}: {text}." if text else ""
    return " ".join(filter(None, (text, run.cause)))


def between(first: RunSide, second: RunSide) -> list[str]:
    """How `second` differs in speed and in size."""
    parts = []
    for key, name in _SPEEDS:
        if key in first.figures and key in second.figures:
            parts.append(speed_words(first.figures[key], second.figures[key], name))
            break
    sizes = [side.figures.get("weights_bytes") for side in (first, second)]
    if sizes[0] is not None and sizes[1] is not None and sizes[0].value:
        change = sizes[1].value / sizes[0].value - 1
        if abs(change) >= 0.005:
            parts.append(f"weights {change_text(change)}")
    return parts


def speed_words(first: Measured, second: Measured, name: str) -> str:
    """ "1.42× faster decode (±3 %)"; "no clear difference in decode speed (within ±4 %)";
    "difference in decode speed unknown (spread above 100 %)"."""
    ratio, spread = second.value / first.value, spread_of(first, second)
    if spread is not None and is_wide(spread, ratio - 1):
        return f"difference in {name} speed unknown {WIDE}"
    if spread is not None and abs(ratio - 1) <= spread:
        return f"no clear difference in {name} speed (within ±{percent_text(spread)})"
    faster = factor_text(ratio) if ratio >= 1 else factor_text(1 / ratio)
    few = min(len(first.samples), len(second.samples))
    known = f"±{percent_text(spread)}" if spread is not None else NOT_RECORDED
    if spread is None and few:
        known = ONE_RUN
    return f"{faster} {'faster' if ratio >= 1 else 'slower'} {name} ({known})"


def of_difference(found: Difference) -> str:
    """A sentence for each column after the first."""
    sentences = []
    for title, side in zip(found.titles[1:], found.sides[1:], strict=True):
        parts = between(found.sides[0], side)
        for key, name in (("perplexity", "perplexity"), ("top1_agreement", "top-1 agreement")):
            row = next((row for row in found.rows if row.metric.key == key), None)
            place = found.sides.index(side)
            change = row.change(place) if row is not None else None
            if change is not None and row is not None:
                parts.append(f"{name} {row.texts()[2 * place]}")
        if parts:
            sentences.append(f"{title}: {', '.join(parts)}.")
    return "\n".join(sentences)


def _alone(side: RunSide) -> list[str]:
    figures = side.figures
    parts = []
    if "perplexity" in figures:
        parts.append(f"perplexity {figures['perplexity'].value:,.3f}")
    if "decode_tokens_per_s" in figures:
        parts.append(f"decode {_rate(figures['decode_tokens_per_s'])}")
    return parts


def _rate(rate: Measured) -> str:
    return f"{rate_text(rate.value)} {spread_text(rate.spread)}".rstrip()


def _of_quantization(run: RunRecord) -> str:
    sizes = [side.figures.get("disk_bytes") for side in run.sides]
    before, after = sizes[0], sizes[-1]
    text = ""
    if before is not None and after is not None and before.value:
        text = f"{percent_text(after.value / before.value)} of the original size"
    error = run.sides[-1].figures.get("layer_error")
    if error is not None:
        text += f", mean error per layer {percent_text(error.value)}"
    return " ".join(filter(None, (f"{text}." if text else "", run.cause)))


def _of_broadcast(run: RunRecord) -> str:
    figures = run.sides[0].figures
    count = int(run.details.get("num_done", 0))
    parts = [f"{count:,} finished repl{'y' if count == 1 else 'ies'}"]
    if "total_tokens_per_s" in figures:
        parts.append(f"{_rate(figures['total_tokens_per_s'])} in total")
    if "reply_tokens_per_s" in figures:
        parts.append(f"{_rate(figures['reply_tokens_per_s'])} each")
    return " ".join(filter(None, (f"{', '.join(parts)}.", run.cause)))
