"""The comparison of two time ranges, by the figures of the metric store. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.snapshot.metrics import METRICS, Metric
from engine.units import change_text, duration_text, figure, from_to, number, points_text
from widgets.live.metric_store import MetricStore
from widgets.live.statistics import Figures
from widgets.plot.series import Mark, MarkKind

REACH_S = 60.0
"""Longest range before and after a mark."""
LITTLE = 0.03
"""Smaller changes are no claim."""

BETTER = {"ttft": -1, "itl": -1, "output": 1, "kv_usage": 0}
"""The compared metrics: -1 lower is better, 1 higher is better, 0 neutral."""


class TimeRange(NamedTuple):
    """`start` to `end` in engine time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 0.0)


Compared = tuple[str, TimeRange, TimeRange]
"""A change, and the ranges before and after it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric in both ranges. levels: of A and B, those of the headline: the p50, of throughput
    the mean. is_compared: there were requests in both."""

    metric: Metric
    a: Figures
    b: Figures
    levels: tuple[float | None, float | None]
    is_compared: bool = True

    @property
    def title(self) -> str:
        return title_of(self.metric)

    @property
    def level_change(self) -> float | None:
        return change(*self.levels) if self.is_compared else None

    @property
    def p99_change(self) -> float | None:
        return change(self.a.p99, self.b.p99) if self.is_compared else None


def title_of(metric: Metric) -> str:
    """Throughput by its statistic: of the others the p50 is shown."""
    return "Mean throughput" if metric.key == "output" else metric.title


def change(before: float | None, after: float | None) -> float | None:
    """As a fraction of `before`; None where either is missing, or where `before` is 0."""
    return (after - before) / before if before and after is not None else None


def compare(store: MetricStore, a: TimeRange, b: TimeRange) -> list[Row]:
    first, second = store.figures(*a), store.figures(*b)
    means = [store.observed(*ends)["output"][1] for ends in (a, b)]
    is_compared = not any(map(_is_idle, (first, second)))
    rows = []
    for key in BETTER:
        one, other = first[key], second[key]
        levels = (means[0], means[1]) if key == "output" else (one.p50, other.p50)
        rows.append(Row(METRICS[key], one, other, levels, is_compared))
    return rows


def _is_idle(figures: Mapping[str, Figures]) -> bool:
    return not (figures["ttft"].num_samples or figures["itl"].num_samples)


def why_not_compared(rows: Sequence[Row]) -> str:
    """ "no requests in A: nothing to compare"; "" where both ranges have some."""
    if not rows or rows[0].is_compared:
        return ""
    found = {row.metric.key: row for row in rows}
    sides = ({key: getattr(row, side) for key, row in found.items()} for side in "ab")
    idle = [name for name, side in zip("AB", sides, strict=True) if _is_idle(side)]
    return f"no requests in {' and '.join(idle)}: nothing to compare"


def around(
    mark: Mark, marks: Sequence[Mark], began: float, now: float
) -> tuple[TimeRange, TimeRange]:
    """The ranges before and after `mark`: up to the next mark, at most `REACH_S`, within `began`
    to `now`."""
    before = max((m.time for m in marks if m.time < mark.time), default=began)
    after = min((m.time for m in marks if m.time > mark.time), default=now)
    start = min(max(before, began, mark.time - REACH_S), mark.time)
    end = max(min(after, now, mark.time + REACH_S), mark.time)
    return TimeRange(start, mark.time), TimeRange(mark.time, end)


def ranges_of(
    since: Mark, until: Mark, marks: Sequence[Mark], store: MetricStore, now: float
) -> tuple[TimeRange, TimeRange]:
    """Before a change's first step and after its last one, which may be the same; without the
    pauses of rebuilds and reloads at their ends."""
    timed = [exact(mark, store) for mark in marks]
    (a, _), (_, b) = (
        around(exact(mark, store), timed, store.began, now) for mark in (since, until)
    )
    return _without_pauses(a, store), _without_pauses(b, store)


def _without_pauses(one: TimeRange, store: MetricStore) -> TimeRange:
    start, end = store.pause(one.start)[1], store.pause(one.end)[0]
    return TimeRange(min(start, end), end)


def pause_text(store: MetricStore, b: TimeRange) -> str:
    """ "pause 3.1 s": of the rebuild or reload before range B; "" without one."""
    start, end = store.pause(b.start)
    return f"pause {duration_text(end - start)}" if end > start else ""


def exact(mark: Mark, store: MetricStore) -> Mark:
    """At the time from which its change held; a load changes no settings."""
    if mark.kind is MarkKind.LOAD:
        return mark
    return replace(mark, time=store.change_near(mark.time))


def values_of(row: Row) -> tuple[str, ...]:
    """p50 (or mean) of A and B, change, p99 of A and B, change, samples of A and B."""
    return (
        *map(figure, row.levels), _changed(row, *row.levels),
        figure(row.a.p99), figure(row.b.p99), _changed(row, row.a.p99, row.b.p99),
        number(row.a.num_samples, 0), number(row.b.num_samples, 0),
    )  # fmt: skip


def _changed(row: Row, before: float | None, after: float | None) -> str:
    """A relative change; of a percentage the difference in percentage points: "+41.00 pt"."""
    if row.metric.unit != "%" or before is None or after is None or not row.is_compared:
        return change_text(change(before, after) if row.is_compared else None)
    return points_text(after - before)


def tone(metric: Metric, share: float | None, is_claimed: bool) -> str:
    """Text role: "better", "worse" or "". is_claimed: the verdict is that the metric changed."""
    better = BETTER[metric.key]
    if share is None or not better or not is_claimed or abs(share) < LITTLE:
        return ""
    return "better" if share * better > 0 else "worse"


def in_brief(rows: Sequence[Row]) -> str:
    """The levels in one line: "TTFT 84 → 151 ms (+80 %) · ..."."""
    return " · ".join(
        f"{row.title} {from_to(*row.levels, row.metric.unit)} ({_changed(row, *row.levels)})"
        for row in rows
        if row.levels != (None, None)
    )


def as_text(rows: Sequence[Row], a: TimeRange, b: TimeRange) -> str:
    """The comparison as tab-separated text for a spreadsheet: plain numbers, unrounded."""
    head = (
        "metric", "unit", "A p50", "B p50", "change (%)", "A p99", "B p99", "change (%)",
        "A n", "B n",
    )  # fmt: skip
    lines = [f"A {duration_text(a.seconds)}, B {duration_text(b.seconds)}", "\t".join(head)]
    for row in rows:
        numbers = (
            *row.levels, _percent(row.level_change),
            row.a.p99, row.b.p99, _percent(row.p99_change),
            row.a.num_samples, row.b.num_samples,
        )  # fmt: skip
        texts = ("" if value is None else f"{value:.6g}" for value in numbers)
        lines.append("\t".join((row.title, row.metric.unit, *texts)))
    return "\n".join(lines) + "\n"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
