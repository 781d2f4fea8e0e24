"""Two stretches of time as numbers side by side. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.tune.history import Figures, TuneHistory
from widgets.charts.scale import MINUS, figure, number
from widgets.charts.series import Mark

REACH_S = 60.0
"""How far before and after a mark is compared, where no other mark is nearer."""
LITTLE_PERCENT = 3.0
"""A smaller change is neither better nor worse."""
NOTHING = "–"


class Metric(NamedTuple):
    """`better`: -1 where less is better, 1 where more is, 0 where neither."""

    key: str
    label: str
    unit: str
    better: int
    tip: str


METRICS = (
    Metric("ttft", "TTFT", "ms", -1, "Arrival to first token"),
    Metric("itl", "ITL", "ms", -1, "Gap between output tokens, pooled over all requests"),
    Metric("tokens", "Output", "tok/s", 1, "Tokens generated in each whole second"),
    Metric("kv_usage", "KV usage", "%", 0, "Blocks that requests hold, at every step"),
)


class Stretch(NamedTuple):
    """From `start` to `end`, seconds of the engine's clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric in both stretches."""

    metric: Metric
    a: Figures
    b: Figures

    @property
    def p50_change(self) -> float | None:
        return change(self.a.p50, self.b.p50)

    @property
    def p99_change(self) -> float | None:
        return change(self.a.p99, self.b.p99)


def change(before: float | None, after: float | None) -> float | None:
    """In percent of `before`; None where either is missing, or where `before` is 0."""
    return 100 * (after - before) / before if before and after is not None else None


def compare(history: TuneHistory, a: Stretch, b: Stretch) -> list[Row]:
    """All metrics in stretch `a` and in stretch `b`."""
    first, second = history.figures(*a), history.figures(*b)
    return [Row(metric, first[metric.key], second[metric.key]) for metric in METRICS]


def around(mark: Mark, marks: Sequence[Mark], began: float, now: float) -> tuple[Stretch, Stretch]:
    """The stretches before and after `mark`: as far as the next other mark, `REACH_S` at most,
    and no further than from `began` to `now`."""
    before = max((m.time for m in marks if m.time < mark.time), default=began)
    after = min((m.time for m in marks if m.time > mark.time), default=now)
    start = min(max(before, began, mark.time - REACH_S), mark.time)
    end = max(min(after, now, mark.time + REACH_S), mark.time)
    return Stretch(start, mark.time), Stretch(mark.time, end)


def value_text(value: float | None) -> str:
    return NOTHING if value is None else figure(value)


def change_text(percent: float | None) -> str:
    """+12 %, −3.4 %, 0 %."""
    if percent is None:
        return NOTHING
    text = number(abs(percent), 0 if abs(percent) >= 9.95 else 1)
    if not float(text.replace(",", "")):
        return "0 %"
    return f"{MINUS if percent < 0 else '+'}{text} %"


def tone(metric: Metric, percent: float | None) -> str:
    """Role of the text: "better", "worse", or "" where it is neither."""
    if percent is None or not metric.better or abs(percent) < LITTLE_PERCENT:
        return ""
    return "better" if percent * metric.better > 0 else "worse"


def in_brief(rows: Sequence[Row]) -> str:
    """The medians in one line: "TTFT 84 → 151 ms (+80 %) · ..."."""
    return " · ".join(
        f"{row.metric.label} {value_text(row.a.p50)} → {value_text(row.b.p50)} {row.metric.unit} "
        f"({change_text(row.p50_change)})"
        for row in rows
        if row.a.p50 is not None or row.b.p50 is not None
    )


def as_text(rows: Sequence[Row], a: Stretch, b: Stretch) -> str:
    """The comparison with tabs between, as spreadsheets take it."""
    head = ("metric", "unit", "A p50", "B p50", "change", "A p99", "B p99", "change", "A n", "B n")
    lines = [f"A {a.seconds:.1f} s, B {b.seconds:.1f} s", "\t".join(head)]
    for row in rows:
        cells = (
            row.metric.label, row.metric.unit,
            value_text(row.a.p50), value_text(row.b.p50), change_text(row.p50_change),
            value_text(row.a.p99), value_text(row.b.p99), change_text(row.p99_change),
            str(row.a.num_samples), str(row.b.num_samples),
        )  # fmt: skip
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"
