"""Arithmetic on the cumulative histograms of a /metrics page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from engine.metrics import HistogramSnapshot


def histogram_of(pairs: Sequence[tuple[float, float]], total: float) -> HistogramSnapshot | None:
    """From (upper bound, samples up to it), in any order, and the sum of all samples. None without
    an infinite bound, which counts all of them.

    Counts that fall from one bound to the next (a scrape in the middle of an update) are raised.
    """
    ordered = sorted(pairs)
    if not ordered or ordered[-1][0] != math.inf or any(math.isnan(bound) for bound, _ in ordered):
        return None
    counts: list[int] = []
    for _, count in ordered:
        counts.append(max(round(count), counts[-1] if counts else 0))
    return HistogramSnapshot(tuple(bound for bound, _ in ordered[:-1]), tuple(counts), total)


def added(one: HistogramSnapshot, other: HistogramSnapshot) -> HistogramSnapshot:
    """Samples of both. Where their bounds differ, only those that both have stay."""
    if one.buckets == other.buckets:
        counts = tuple(a + b for a, b in zip(one.cumulative, other.cumulative, strict=True))
        return HistogramSnapshot(one.buckets, counts, one.sum + other.sum)
    common = tuple(bound for bound in one.buckets if bound in set(other.buckets))
    counts = tuple(_count(one, bound) + _count(other, bound) for bound in (*common, math.inf))
    return HistogramSnapshot(common, counts, one.sum + other.sum)


def since(now: HistogramSnapshot, before: HistogramSnapshot | None) -> HistogramSnapshot:
    """Samples that came after `before`. Counts that fell mean that the server was started anew:
    then all of them are new."""
    if before is None or before.buckets != now.buckets or _fell(now, before):
        return now
    grown = (a - b for a, b in zip(now.cumulative, before.cumulative, strict=True))
    return HistogramSnapshot(
        now.buckets, tuple(accumulate(grown, max)), max(now.sum - before.sum, 0.0)
    )


def mean(histogram: HistogramSnapshot) -> float | None:
    return histogram.sum / histogram.count if histogram.count else None


def quantile(histogram: HistogramSnapshot, q: float) -> float | None:
    """The q-quantile (0 to 1), its samples spread evenly over the bucket that it falls into, as
    Prometheus' histogram_quantile has it. Beyond the last bound it is that bound: more is not
    known. None without samples."""
    if not 0 <= q <= 1:
        raise ValueError(f"q is {q}, not in [0, 1]")
    if not histogram.count or not histogram.buckets:
        return None
    rank = q * histogram.count
    below = 0
    for index, bound in enumerate(histogram.buckets):
        upto = histogram.cumulative[index]
        if upto >= rank and upto > below:
            low = histogram.buckets[index - 1] if index else min(0.0, bound)
            return low + (bound - low) * max(rank - below, 0.0) / (upto - below)
        below = upto
    return histogram.buckets[-1]


def _fell(now: HistogramSnapshot, before: HistogramSnapshot) -> bool:
    return any(a < b for a, b in zip(now.cumulative, before.cumulative, strict=True))


def _count(histogram: HistogramSnapshot, bound: float) -> int:
    if bound == math.inf:
        return histogram.count
    return histogram.cumulative[histogram.buckets.index(bound)]
