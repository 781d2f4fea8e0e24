"""Parses /metrics pages; arithmetic on cumulative histograms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from app.clients.metric_names import Combine, Figure, Latency, Names, Table
from engine.telemetry.metrics import HistogramSnapshot


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


Labels = Mapping[str, str]


class Series(NamedTuple):
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Figures found on a page, under our names."""

    values: Mapping[Figure, float] = field(default_factory=dict)
    latencies: Mapping[Latency, HistogramSnapshot] = field(default_factory=dict)

    def __or__(self, other: Reading) -> Reading:
        """Both; this one where both know something."""
        return Reading({**other.values, **self.values}, {**other.latencies, **self.latencies})


class Exposition:
    """A page of Prometheus' text format. Lines that are not of it raise ValueError."""

    def __init__(self, text: str) -> None:
        self._series: dict[str, list[Series]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = Series(sample.labels, float(sample.value))
                self._series.setdefault(_normal(sample.name), []).append(series)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._series)

    def has_prefix(self, prefix: str) -> bool:
        return any(name.startswith(_normal(prefix)) for name in self._series)

    def read(self, table: Table) -> Reading:
        values = {
            figure: value
            for figure, wanted in table.figures.items()
            if (value := self._value(wanted, table.only)) is not None
        }
        latencies = {
            latency: found
            for latency, wanted in table.latencies.items()
            if (found := self._histogram(wanted, table.only)) is not None
        }
        return Reading(values, latencies)

    def _value(self, wanted: Names, only: Labels) -> float | None:
        for name in wanted.names:
            parts = [self._of(part.strip(), only) for part in name.split("+")]
            if not all(parts):
                continue
            values = [
                math.fsum(part) / (len(part) if wanted.combine is Combine.MEAN else 1)
                for part in parts
            ]
            return math.fsum(values)
        return None

    def _of(self, name: str, only: Labels) -> list[float]:
        """The finite values of all series of a name."""
        found = self._find(name)
        return [s.value for s in found if math.isfinite(s.value) and _is_wanted(s.labels, only)]

    def _find(self, name: str) -> Sequence[Series]:
        """The parser adds _total to counters that have none."""
        name = _normal(name)
        return self._series.get(name) or self._series.get(f"{name}_total") or ()

    def _histogram(self, wanted: Names, only: Labels) -> HistogramSnapshot | None:
        for name in wanted.names:
            found = list(self._histograms(name, only))
            if found:
                result = found[0]
                for other in found[1:]:
                    result = added(result, other)
                return result
        return None

    def _histograms(self, name: str, only: Labels) -> Iterator[HistogramSnapshot]:
        """One for each set of labels."""
        buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for labels, value in self._find(f"{name}_bucket"):
            if "le" in labels and _is_wanted(labels, only):
                bound = float(labels["le"])
                buckets.setdefault(_key(labels), []).append((bound, value))
        sums = {_key(labels): value for labels, value in self._find(f"{name}_sum")}
        for key, pairs in buckets.items():
            made = histogram_of(pairs, sums.get(key, 0.0))
            if made is not None:
                yield made


def tensorrt_iterations(data: Any) -> Reading:
    """The iterations that trtllm-serve lists at /metrics, those since they were last asked for
    (tensorrt_llm/serve/openai_server.py; the fields are those of IterationStats). An empty list:
    nothing runs."""
    if not isinstance(data, list):
        return Reading()
    if not data:
        return Reading({Figure.RUNNING: 0.0, Figure.WAITING: 0.0})
    last = data[-1] if isinstance(data[-1], dict) else {}
    values: dict[Figure, float] = {}
    _take(values, Figure.RUNNING, last.get("numActiveRequests"))
    _take(values, Figure.WAITING, last.get("numQueuedRequests"))
    cache = last.get("kvCacheStats") or {}
    used, most = cache.get("usedNumBlocks"), cache.get("maxNumBlocks")
    if isinstance(used, int) and isinstance(most, int) and most > 0:
        values[Figure.KV_USAGE] = used / most
    hits, misses = cache.get("reusedBlocks"), cache.get("missedBlocks")
    if isinstance(hits, int) and isinstance(misses, int):
        values[Figure.PREFIX_HITS] = float(hits)
        values[Figure.PREFIX_QUERIES] = float(hits + misses)
    return Reading(values)


def llama_slots(data: Any) -> Reading:
    """llama-server's /slots: each is idle or works on a request."""
    if not isinstance(data, list) or not all(isinstance(slot, dict) for slot in data):
        return Reading()
    busy = [slot for slot in data if slot.get("is_processing") or slot.get("state") == 1]
    return Reading({Figure.RUNNING: float(len(busy))})


def parsed_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _take(values: dict[Figure, float], figure: Figure, value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        values[figure] = float(value)


def _normal(name: str) -> str:
    return name.replace(":", "_")


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "le"))


def _is_wanted(labels: Labels, only: Labels) -> bool:
    return all(labels.get(name, value) == value for name, value in only.items())
