"""Recent latency, throughput and KV usage, and the comparison of two time ranges. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.snapshot import EngineSnapshot, Sample
from engine.snapshot.metrics import METRICS, Metric
from engine.units import MINUS, NOTHING, figure, number
from widgets.plot.series import FEWEST_FOR_P99, Floats, Mark, RingBuffer

_TTFT_KEPT, _ITL_KEPT, _STATES_KEPT, _OTHERS_KEPT = 16_384, 262_144, 262_144, 16_384


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of one range. p99 of fewer than 100 samples is None."""

    num_samples: int = 0
    p50: float | None = None
    p99: float | None = None
    largest: float | None = None

    @classmethod
    def of(cls, values: Floats) -> Figures:
        if not len(values):
            return cls()
        p99 = float(np.percentile(values, 99)) if len(values) >= FEWEST_FOR_P99 else None
        return cls(len(values), float(np.median(values)), p99, float(values.max()))


class TuneHistory:
    """Bounded history in engine time. Older samples than `complete_since` were dropped."""

    def __init__(self) -> None:
        self._ttft = RingBuffer(_TTFT_KEPT)
        self._itl = RingBuffer(_ITL_KEPT)
        self._kv_usage = RingBuffer(_STATES_KEPT)
        self._others = RingBuffer(_OTHERS_KEPT)  # cores that other programs use
        self.complete_since = -math.inf

    def update(self, snapshot: EngineSnapshot) -> None:
        for ring, samples in ((self._ttft, snapshot.ttft), (self._itl, snapshot.itl)):
            _extend(ring, samples)
            if len(ring) == ring.capacity:
                self.complete_since = max(self.complete_since, float(ring.times[0]))
        for step in snapshot.steps:  # usage peaks between two snapshots count
            if step.kv_usage is not None:
                self._kv_usage.append(min(step.end, snapshot.time), step.kv_usage * 100)
        self._kv_usage.append(snapshot.time, snapshot.kv_usage * 100)
        if snapshot.threads is not None and snapshot.threads.others is not None:
            self._others.append(snapshot.time, snapshot.threads.others)

    @property
    def began(self) -> float:
        """Time of the oldest complete data; infinity without any."""
        times = self._kv_usage.times
        return max(float(times[0]), self.complete_since) if len(times) else math.inf

    def figures(self, start: float, end: float) -> dict[str, Figures]:
        """Of the range `start` to `end`: "ttft" and "itl" in ms, "output" in tokens per second of
        its whole seconds, "kv_usage" in percent at every step and state."""
        return {
            "ttft": Figures.of(self._ttft.between(start, end)),
            "itl": Figures.of(self._itl.between(start, end)),
            "output": Figures.of(self._tokens_per_second(start, end)),
            "kv_usage": Figures.of(self._states(start, end)),
        }

    def observed(self, start: float, end: float) -> dict[str, tuple[Floats, float | None]]:
        """Independent observations and p50 of the range: "ttft" by request and "itl" by second, in
        ms, "output" in tokens per second of its whole seconds."""
        ttft, itl = (ring.between(start, end) for ring in (self._ttft, self._itl))
        tokens = self._tokens_per_second(start, end)
        return {
            "ttft": (ttft, Figures.of(ttft).p50),
            "itl": (self._by_second(start, end), Figures.of(itl).p50),
            "output": (tokens if len(ttft) or len(itl) else tokens[:0], Figures.of(tokens).p50),
        }

    def _by_second(self, start: float, end: float) -> Floats:
        """Median ITL of each whole second with tokens."""
        edges = start + np.arange(math.floor(end - start + 1e-9) + 1)
        cuts = np.searchsorted(self._itl.times, edges)
        found = [self._itl.values[a:b] for a, b in pairwise(cuts) if b > a]
        return np.array([float(np.median(values)) for values in found])

    def busy_cores(self, start: float, end: float) -> float | None:
        """Mean number of cores that other programs used; None if unknown."""
        found = self._others.between(start, end)
        return float(found.mean()) if len(found) else None

    def _tokens_per_second(self, start: float, end: float) -> Floats:
        """Counted from latency samples: each token is one TTFT or ITL sample."""
        seconds = math.floor(end - start + 1e-9)
        if seconds < 1 or not self.began < end:
            return np.empty(0)
        edges = start + np.arange(seconds + 1)
        found = [np.searchsorted(ring.times, edges) for ring in (self._ttft, self._itl)]
        return np.diff(found[0] + found[1]).astype(float)

    def _states(self, start: float, end: float) -> Floats:
        found = self._kv_usage.between(start, end)
        before = self._kv_usage.at(start)  # still valid at start
        return found if before is None else np.append(before[1], found)


def _extend(ring: RingBuffer, samples: tuple[Sample, ...]) -> None:
    if samples:
        ring.extend([s.time for s in samples], [s.value * 1e3 for s in samples])


REACH_S = 60.0
"""Longest range before and after a mark."""
LITTLE_PERCENT = 3.0
"""Smaller changes are neutral."""

BETTER = {"ttft": -1, "itl": -1, "output": 1, "kv_usage": 0}
"""The compared metrics: -1 lower is better, 1 higher is better, 0 neutral."""


class TimeRange(NamedTuple):
    """`start` to `end` in engine time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric in both ranges."""

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


def compare(history: TuneHistory, a: TimeRange, b: TimeRange) -> list[Row]:
    first, second = history.figures(*a), history.figures(*b)
    return [Row(METRICS[key], first[key], second[key]) for key in BETTER]


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


def values_of(row: Row) -> tuple[str, ...]:
    """p50 of A and B, change, p99 of A and B, change, samples of A and B."""
    return (
        value_text(row.a.p50), value_text(row.b.p50), change_text(row.p50_change),
        value_text(row.a.p99), value_text(row.b.p99), change_text(row.p99_change),
        number(row.a.num_samples, 0), number(row.b.num_samples, 0),
    )  # fmt: skip


def tone(metric: Metric, percent: float | None) -> str:
    """Text role: "better", "worse" or ""."""
    better = BETTER[metric.key]
    if percent is None or not better or abs(percent) < LITTLE_PERCENT:
        return ""
    return "better" if percent * better > 0 else "worse"


def in_brief(rows: Sequence[Row]) -> str:
    """The medians in one line: "TTFT 84 → 151 ms (+80 %) · ..."."""
    return " · ".join(
        f"{row.metric.title} {value_text(row.a.p50)} → {value_text(row.b.p50)} {row.metric.unit} "
        f"({change_text(row.p50_change)})"
        for row in rows
        if row.a.p50 is not None or row.b.p50 is not None
    )


def as_text(rows: Sequence[Row], a: TimeRange, b: TimeRange) -> str:
    """The comparison as tab-separated text."""
    head = ("metric", "unit", "A p50", "B p50", "change", "A p99", "B p99", "change", "A n", "B n")
    lines = [f"A {a.seconds:.1f} s, B {b.seconds:.1f} s", "\t".join(head)]
    lines += [
        "\t".join(
            (row.metric.title, row.metric.unit, *values_of(row)[:6],
             str(row.a.num_samples), str(row.b.num_samples))
        )
        for row in rows
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
