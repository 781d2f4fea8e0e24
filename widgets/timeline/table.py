"""Steps as text and as a table. No Qt."""

from __future__ import annotations

from collections.abc import Callable

from engine.snapshot import StepEntry, StepRecord, unpacked
from engine.units import duration_text, percent_text
from widgets.plot.table import Cell, ValuesTable
from widgets.timeline.history import StepHistory

Name = Callable[[str], str]
"""Request id to display name."""


def step_text(step: StepRecord) -> str:
    """ "step 48,211 · 28.4 ms · 16 decode + 96 prefill tokens · 3 waiting"."""
    step = unpacked(step)
    parts = [f"step {step.index:,}", f"{duration_text(step.duration)}"]
    if step.num_threads:
        parts[-1] += f" on {step.num_threads} thread{'s' * (step.num_threads != 1)}"
    decode, prefill = step.num_decode_tokens, step.num_prefill_tokens
    drafts = sum(entry.num_draft for entry in step.entries)
    kinds = ((decode, "decode"), (drafts, "drafted"), (prefill, "prefill"))
    counts = [f"{n:,} {kind}" for n, kind in kinds if n]
    total = decode + drafts + prefill
    parts.append(" + ".join(counts) + (" token" if total == 1 else " tokens") if counts else "idle")
    if step.num_cached_tokens:
        parts.append(f"{step.num_cached_tokens:,} cached tokens")
    if step.num_waiting:
        parts.append(f"{step.num_waiting:,} waiting")
    if step.preempted:
        parts.append(f"{len(step.preempted):,} preempted")
    if step.num_resumed:
        parts.append(f"{step.num_resumed:,} resumed")
    if step.held_back:
        count = len(step.held_back)
        parts.append(f"{count:,} idle slot{'s' * (count != 1)} (static batching)")
    return " · ".join(parts)


def time_text(step: StepRecord) -> str:
    """ "model 75 % · sampling 25 %"."""
    parts = (
        ("drafting", step.draft_s), ("model", step.model_s), ("sampling", step.sample_s),
        ("scheduling", step.schedule_s), ("output processing", step.commit_s),
    )  # fmt: skip
    known = [(name, seconds) for name, seconds in parts if seconds > 0]
    if not known or step.duration <= 0:
        return ""
    shares = [f"{name} {percent_text(seconds / step.duration)}" for name, seconds in known]
    return " · ".join(shares)


def batch_text(step: StepRecord, name: Name) -> str:
    """Each request's work in a step, and those held by static batching."""
    parts = [entry_text(entry, name) for entry in step.entries]
    parts += [f"“{name(r)}”: waiting for the static batch to finish" for r in step.held_back]
    return "; ".join(parts)


def entry_text(entry: StepEntry, name: Name) -> str:
    title = f"“{name(entry.request_id)}”" + (" (resumed)" if entry.is_resumed else "")
    if entry.kind == "prefill":
        count = f"{entry.num_tokens:,} token" + ("" if entry.num_tokens == 1 else "s")
        cached = f", {entry.num_cached_tokens:,} cached" if entry.num_cached_tokens else ""
        return f"{title}: prefill, {count}{cached}"
    if entry.num_draft:
        return f"{title}: decode, {entry.num_accepted} of {entry.num_draft} draft tokens accepted"
    return f"{title}: decode"


HEADERS = (
    "step", "duration (ms)", "requests", "prefill", "decode", "drafted", "accepted", "cached",
    "waiting", "preempted", "resumed", "finished", "idle slots", "batch",
)  # fmt: skip
_DIGITS = (0, 2, *[0] * (len(HEADERS) - 2))


def steps_table(history: StepHistory, start: int, end: int, name: Name) -> ValuesTable:
    """Steps start to end - 1, newest first. Prefill, decode, drafted, accepted and cached count
    tokens; idle slots: left empty by static batching."""
    ordinals = range(end - 1, start - 1, -1)
    rows = tuple(_row(history.record(ordinal), name) for ordinal in ordinals)
    return ValuesTable(HEADERS, rows, _DIGITS)


def _row(step: StepRecord, name: Name) -> tuple[Cell, ...]:
    step = unpacked(step)
    return (
        step.index, 1e3 * step.duration, len(step.entries), step.num_prefill_tokens,
        step.num_decode_tokens, sum(e.num_draft for e in step.entries),
        sum(e.num_accepted for e in step.entries), step.num_cached_tokens, step.num_waiting,
        len(step.preempted), step.num_resumed, len(step.finished), len(step.held_back),
        batch_text(step, name),
    )  # fmt: skip
