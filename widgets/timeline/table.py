"""The steps of a timeline as a table of values. No Qt of its own."""

from __future__ import annotations

from engine.snapshot import StepRecord, unpacked
from widgets.charts.table import Cell, ValuesTable
from widgets.timeline.history import StepHistory
from widgets.timeline.words import Name, batch_words

HEADERS = (
    "step", "duration (ms)", "requests", "prefill", "decode", "drafted", "accepted", "cached",
    "waiting", "preempted", "resumed", "finished", "idle slots", "batch",
)  # fmt: skip
_DIGITS = (0, 2, *[0] * (len(HEADERS) - 2))


def steps_table(history: StepHistory, start: int, end: int, name: Name) -> ValuesTable:
    """The steps start to end - 1, the newest first. Prefill, decode, drafted, accepted and cached
    count tokens; idle slots are those that continuous batching would fill."""
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
        batch_words(step, name),
    )  # fmt: skip
