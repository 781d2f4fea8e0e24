"""What a page of metrics says: Prometheus' text, and the JSON of those that have their own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from app.dialects.figures import Combine, Figure, Latency, Names, Table
from app.dialects.histogram import added, histogram_of
from engine.metrics import HistogramSnapshot

Labels = Mapping[str, str]


class Series(NamedTuple):
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found, under our names."""

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
