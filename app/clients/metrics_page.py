"""Parses /metrics pages; arithmetic on cumulative histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate, chain
from statistics import fmean
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.clients.metric_names import MEANS, Figure, Latency, Table
from engine.telemetry.metrics import HistogramSnapshot

Labels = Mapping[str, str]


def histogram_of(pairs: Sequence[tuple[float, float]], total: float) -> HistogramSnapshot | None:
    """From (upper bound, samples up to it), in any order, and the sum of all samples. None without
    an infinite bound, which counts all of them.

    Counts that fall from one bound to the next (a scrape in the middle of an update) are raised.
    """
    ordered = sorted(pairs)
    if not ordered or ordered[-1][0] != math.inf or any(math.isnan(bound) for bound, _ in ordered):
        return None
    counts = accumulate((round(count) for _, count in ordered), max, initial=0)
    return HistogramSnapshot(tuple(bound for bound, _ in ordered[:-1]), tuple(counts)[1:], total)


def added(one: HistogramSnapshot, other: HistogramSnapshot) -> HistogramSnapshot:
    """Samples of both; if their bounds differ, only common bounds remain."""
    mine, theirs = (
        dict(zip((*h.buckets, math.inf), h.cumulative, strict=True)) for h in (one, other)
    )
    common = [bound for bound in mine if bound in theirs]
    counts = tuple(mine[bound] + theirs[bound] for bound in common)
    return HistogramSnapshot(tuple(common[:-1]), counts, one.sum + other.sum)


def since(now: HistogramSnapshot, before: HistogramSnapshot | None) -> HistogramSnapshot:
    """Samples since `before`. Counts that fell mean a restart: then all samples are new."""
    if before is None or before.buckets != now.buckets:
        return now
    grown = [a - b for a, b in zip(now.cumulative, before.cumulative, strict=True)]
    if min(grown) < 0:
        return now
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


Readings = tuple[dict[Figure, float], dict[Latency, HistogramSnapshot]]
"""Figures found on a page, under our names."""


class Exposition:
    """A page of Prometheus' text format. Invalid lines raise ValueError."""

    def __init__(self, text: str) -> None:
        self._series: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._series.setdefault(sample.name.replace(":", "_"), []).append(sample)

    def is_of(self, table: Table) -> bool:
        return any(name.startswith(table.full("")) for name in self._series)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric by one of its labels."""
        sums: dict[str, float] = {}
        for one in self._find(name, {}):
            if label in one.labels:
                sums[one.labels[label]] = sums.get(one.labels[label], 0.0) + one.value
        return sums

    def read(self, table: Table) -> Readings:
        found: Readings = {}, {}
        for figure in table.names:
            for names in table.spellings(figure):
                if isinstance(figure, Figure):
                    value = self._value(names, table.only, is_mean=figure in MEANS)
                    if value is not None:
                        found[0].setdefault(figure, value)
                else:
                    histograms = list(self._histograms(names[0], table.only))
                    if histograms:
                        found[1].setdefault(figure, reduce(added, histograms))
        return found

    def _value(self, names: list[str], only: Labels, *, is_mean: bool) -> float | None:
        """None unless all names are there. Only finite values count."""
        parts = [
            [s.value for s in self._find(name, only) if math.isfinite(s.value)] for name in names
        ]
        if not all(parts):
            return None
        return (math.fsum if not is_mean else fmean)(chain(*parts))

    def _find(self, name: str, only: Labels) -> list[Sample]:
        """The parser adds _total to counters that have none."""
        found = self._series.get(name) or self._series.get(f"{name}_total") or ()
        is_wanted = lambda s: all(s.labels.get(n, value) == value for n, value in only.items())
        return list(filter(is_wanted, found))

    def _histograms(self, name: str, only: Labels) -> Iterator[HistogramSnapshot]:
        buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        for sample in self._find(f"{name}_bucket", only):
            labels = dict(sample.labels)
            bound = labels.pop("le", None)
            if bound is not None:
                key = frozenset(labels.items())
                buckets.setdefault(key, []).append((float(bound), sample.value))
        sums = {frozenset(s.labels.items()): s.value for s in self._find(f"{name}_sum", only)}
        for key, pairs in buckets.items():
            made = histogram_of(pairs, sums.get(key, 0.0))
            if made is not None:
                yield made


def tensorrt_iterations(data: Any) -> dict[Figure, float]:
    """The iterations that trtllm-serve lists at /metrics, those since they were last asked for
    (tensorrt_llm/serve/openai_server.py; the fields are those of IterationStats). An empty list:
    nothing runs."""
    if not isinstance(data, list):
        return {}
    if not data:
        return {Figure.RUNNING: 0.0, Figure.WAITING: 0.0}
    last = data[-1] if isinstance(data[-1], dict) else {}
    cache = last.get("kvCacheStats") or {}
    found = {
        Figure.RUNNING: _number(last, "numActiveRequests"),
        Figure.WAITING: _number(last, "numQueuedRequests"),
    }
    used, most = _number(cache, "usedNumBlocks"), _number(cache, "maxNumBlocks")
    if used is not None and most:
        found[Figure.KV_USAGE] = used / most
    hits, misses = _number(cache, "reusedBlocks"), _number(cache, "missedBlocks")
    if hits is not None and misses is not None:
        found |= {Figure.PREFIX_HITS: hits, Figure.PREFIX_QUERIES: hits + misses}
    return {figure: value for figure, value in found.items() if value is not None}


def llama_slots(data: Any) -> dict[Figure, float]:
    """llama-server's /slots: each is idle or works on a request."""
    if not isinstance(data, list) or not all(isinstance(slot, dict) for slot in data):
        return {}
    busy = [slot for slot in data if slot.get("is_processing") or slot.get("state") == 1]
    return {Figure.RUNNING: float(len(busy))}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
