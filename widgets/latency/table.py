"""The latency of a reply as a table of values. No Qt of its own."""

from __future__ import annotations

from widgets.charts.table import Cell, ValuesTable
from widgets.latency.reply import Cause, ReplyLatency, Stage

HEADERS = (
    "part", "start (ms)", "length (ms)", "tokens", "cached tokens", "last step", "requests", "why",
)  # fmt: skip
_DIGITS = (0, 2, 2, 0, 0, 0, 0, 0)
_STAGES = {Stage.QUEUE: "queue", Stage.PREFILL: "prefill", Stage.WAIT: "wait"}
_CAUSES = {
    Cause.NONE: "",
    Cause.PREFILL: "prefill of others",
    Cause.PREEMPTED: "it was preempted",
    Cause.BETWEEN: "no step ran",
    Cause.BATCH: "larger batch",
    Cause.UNKNOWN: "slow, not known why",
}


def latency_table(latency: ReplyLatency | None) -> ValuesTable:
    """The stretches to the first token, then every gap: a row each, in order."""
    rows: list[tuple[Cell, ...]] = []
    for stretch in latency.stretches if latency is not None else ():
        is_prefill = stretch.stage is Stage.PREFILL
        counts = (stretch.num_tokens, stretch.num_cached) if is_prefill else (None, None)
        times = 1e3 * stretch.start, 1e3 * stretch.seconds
        rows.append((_STAGES[stretch.stage], *times, *counts, None, None, ""))
    for gap in latency.gaps if latency is not None else ():
        assert latency is not None
        step = gap.steps[-1] if gap.steps else None
        of_step = (None, None) if step is None else (step.index, len(step.entries))
        times = 1e3 * gap.start, 1e3 * gap.seconds
        cause = _CAUSES[latency.cause(gap)]
        rows.append(("gap", *times, gap.num_tokens, None, *of_step, cause))
    return ValuesTable(HEADERS, tuple(rows), _DIGITS)
