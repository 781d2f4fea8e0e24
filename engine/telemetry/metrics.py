"""Figures of latency and throughput: percentiles, a time window of samples, and what the engine
accumulates for the metrics of `engine.telemetry.metric_registry`. Pure Python: no torch.

Times are seconds of `time.perf_counter()`. Fractions, percentiles among them, are 0 to 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from engine.snapshot import (
    Counters,
    EngineSnapshot,
    FinishReason,
    RequestTimes,
    Sample,
    SpeculationSnapshot,
    StepRecord,
)
from engine.telemetry.metric_registry import METRICS, Metric, MetricKind

__all__ = [
    "METRICS",
    "EngineMetrics",
    "HistogramSnapshot",
    "LatencyWindow",
    "Metric",
    "MetricKind",
    "MetricsSnapshot",
    "Summary",
    "percentile",
]

MIN_SAMPLES_FOR_P99 = 100


def percentile(values: Iterable[float], q: float) -> float:
    """The q-quantile (0 to 1), linear between the nearest ranks (numpy's default method).
    Raises ValueError without values or for a q outside [0, 1]."""
    return _of_sorted(sorted(values), q)


def _of_sorted(ordered: Sequence[float], q: float) -> float:
    if not ordered:
        raise ValueError("no values to take a percentile of")
    if not 0 <= q <= 1:
        raise ValueError(f"q is {q}, not in [0, 1]")
    rank = q * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report says of a set of samples, in the samples' own unit. All None without samples;
    p99 is None under 100 samples, where it would be little else than the maximum."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    num_samples: int = 0

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(
            mean=math.fsum(ordered) / len(ordered),
            p50=_of_sorted(ordered, 0.5),
            p90=_of_sorted(ordered, 0.9),
            p99=_of_sorted(ordered, 0.99) if len(ordered) >= MIN_SAMPLES_FOR_P99 else None,
            max=ordered[-1],
            num_samples=len(ordered),
        )

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


class LatencyWindow:
    """The samples of the last `horizon_s` seconds, at most `max_samples` of them (the newest)."""

    def __init__(self, horizon_s: float, max_samples: int = 8192) -> None:
        self.horizon_s = horizon_s
        self._samples: deque[Sample] = deque(maxlen=max_samples)
        self._summary: Summary | None = None

    def extend(self, samples: Iterable[Sample]) -> None:
        """Add samples, in order of time."""
        self._samples.extend(samples)
        self._summary = None
        if self._samples:
            self.forget_before(self._samples[-1].time - self.horizon_s)

    def advance(self, now: float) -> None:
        """Drop what is older than the horizon at `now`."""
        self.forget_before(now - self.horizon_s)

    def forget_before(self, time: float) -> None:
        while self._samples and self._samples[0].time < time:
            self._samples.popleft()
            self._summary = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    @property
    def summary(self) -> Summary:
        """Computed when asked for and kept until the samples change."""
        if self._summary is None:
            self._summary = Summary.of(sample.value for sample in self._samples)
        return self._summary

    @property
    def p50(self) -> float | None:
        return self.summary.p50

    @property
    def p99(self) -> float | None:
        return self.summary.p99


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """cumulative[i]: samples <= buckets[i]; the last entry, one more, counts all (+Inf)."""

    buckets: tuple[float, ...]
    cumulative: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return self.cumulative[-1]


class _Histogram:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._buckets, tuple(accumulate(self._counts)), self._sum)


Labels = tuple[str, ...]
"""Values of a metric's labels, in the order in which it declares them."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """values[name][labels]: gauges, counters and infos; histograms[name]."""

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    histograms: Mapping[str, HistogramSnapshot] = field(default_factory=dict)

    def value(self, name: str, *labels: str) -> float:
        """One value; 0 for labels that have not occurred."""
        return self.values[name].get(labels, 0.0)


class EngineMetrics:
    """Accumulates what the engine reports. Every event costs the same at any uptime.

    Feed it each EngineSnapshot once (`observe_snapshot`), and each finished request.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {
            m.name: {} if m.labels else {(): 0.0}
            for m in METRICS.values()
            if m.kind is not MetricKind.HISTOGRAM
        }
        self._histograms = {
            m.name: _Histogram(m.buckets)
            for m in METRICS.values()
            if m.kind is MetricKind.HISTOGRAM
        }
        for reason in FinishReason:
            self._values["request_success"][(reason.value,)] = 0.0

    def observe_snapshot(self, snapshot: EngineSnapshot) -> None:
        """The state now, the running totals, and the steps and samples since the last one."""
        self.observe_totals(snapshot.counters)
        if snapshot.speculation is not None:
            self._observe_drafts(snapshot.speculation)
        for record in snapshot.steps:
            self.observe_step(record)
        for sample in snapshot.ttft:
            self._histograms["engine_time_to_first_token_seconds"].observe(sample.value)
        for sample in snapshot.itl:
            self._histograms["inter_token_latency_seconds"].observe(sample.value)
        self._set("num_requests_running", snapshot.num_running)
        self._set("num_requests_waiting", snapshot.num_waiting)
        self._set("kv_cache_usage_perc", snapshot.kv_usage)
        self._values["cache_config_info"] = {_cache_labels(snapshot): 1.0}

    def observe_totals(self, counters: Counters) -> None:
        self._set("prefix_cache_queries", counters.prefix_queries)
        self._set("prefix_cache_hits", counters.prefix_hits)
        self._set("num_preemptions", counters.preemptions)
        self._set("prompt_tokens", counters.prompt_tokens + counters.cached_prompt_tokens)
        self._set("generation_tokens", counters.generation_tokens)

    def observe_step(self, record: StepRecord) -> None:
        self._set("num_requests_running", record.num_running)
        self._set("num_requests_waiting", record.num_waiting)
        num_tokens = sum(entry.num_tokens for entry in record.entries)
        self._histograms["iteration_tokens_total"].observe(num_tokens)

    def observe_first_token(self, seconds: float) -> None:
        """A request's first token is on its way to whoever asked, so long after it arrived."""
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def observe_finished(self, times: RequestTimes, reason: FinishReason) -> None:
        """A request has ended. What it never reached (a first token, say) is not counted."""
        self._values["request_success"][(reason.value,)] += 1
        first, scheduled = times.first_token, times.first_scheduled
        last = times.tokens[-1].time if times.tokens else None
        for name, value in (
            ("e2e_request_latency_seconds", times.e2e_s),
            ("request_time_per_output_token_seconds", times.tpot_s),
            ("request_queue_time_seconds", times.queue_s),
            ("request_prefill_time_seconds", _between(scheduled, first)),
            ("request_decode_time_seconds", _between(first, last)),
        ):
            if value is not None:
                self._histograms[name].observe(value)

    def observe_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Of a request that has ended."""
        self._histograms["request_prompt_tokens"].observe(num_prompt_tokens)
        self._histograms["request_generation_tokens"].observe(num_output_tokens)

    def _observe_drafts(self, drafts: SpeculationSnapshot) -> None:
        self._set("spec_decode_num_drafts", drafts.rounds)
        self._set("spec_decode_num_draft_tokens", drafts.drafted)
        self._set("spec_decode_num_accepted_tokens", drafts.accepted)
        self._values["spec_decode_num_accepted_tokens_per_pos"] = {
            (str(place),): float(count) for place, count in enumerate(drafts.accepted_per_position)
        }

    def snapshot(self) -> MetricsSnapshot:
        return MetricsSnapshot(
            {name: dict(values) for name, values in self._values.items()},
            {name: histogram.snapshot() for name, histogram in self._histograms.items()},
        )

    def _set(self, name: str, value: float) -> None:
        self._values[name][()] = float(value)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _cache_labels(snapshot: EngineSnapshot) -> Labels:
    config: Any = snapshot.config
    known = {
        "block_size": snapshot.blocks.block_size,
        "num_gpu_blocks": snapshot.blocks.num_blocks,
        "enable_prefix_caching": config.enable_prefix_caching,
        "gpu_memory_utilization": config.gpu_memory_utilization,
    }
    return tuple(str(known[label]) for label in METRICS["cache_config_info"].labels)
