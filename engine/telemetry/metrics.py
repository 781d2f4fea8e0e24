"""The exported metrics, what the engine accumulates for them, and summaries of samples.

Names and types are vLLM's, so that dashboards made for vLLM read them. Titles, units and
descriptions are those of `engine.snapshot.metrics`. Pure Python: no torch.

Times are seconds of `time.perf_counter()`. Fractions, percentiles among them, are 0 to 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from engine.snapshot import (
    EngineSnapshot,
    FinishReason,
    RequestTimes,
    SpeculationSnapshot,
)
from engine.snapshot.metrics import METRICS, Metric

MIN_SAMPLES_FOR_P99 = 100


class MetricKind(StrEnum):
    """How Prometheus stores a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"  # a gauge that is always 1; its labels carry the values


class Exported(NamedTuple):
    """A metric, by its key in METRICS, under its Prometheus name. `buckets`: upper bounds of a
    histogram, without +Inf."""

    key: str
    name: str
    kind: MetricKind = MetricKind.GAUGE
    buckets: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    prefix: str = "vllm"  # "inferdeck": what vLLM does not have

    @property
    def metric(self) -> Metric:
        return METRICS[self.key]

    @property
    def help(self) -> str:
        return f"{self.metric.description}."

    @property
    def exported_name(self) -> str:
        """vLLM's name; a counter's samples end in _total."""
        name = self.name
        if self.kind is MetricKind.COUNTER:
            name = f"{name.removesuffix('_total')}_total"
        return f"{self.prefix}:{name}"


# vLLM's ITL buckets start at 10 ms, which small and quantized models are below.
_ITL_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_REQUEST_BUCKETS = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)
_LENGTH_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_STEP_TOKEN_BUCKETS = tuple(float(2**power) for power in range(15))
_CACHE_LABELS = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "gpu_memory_utilization")


_COUNTER, _HISTOGRAM = MetricKind.COUNTER, MetricKind.HISTOGRAM
_DECLARED = (
    Exported("running", "num_requests_running"),
    Exported("waiting", "num_requests_waiting"),
    Exported("kv_usage", "kv_cache_usage_perc"),
    Exported("cache_config", "cache_config_info", MetricKind.INFO, labels=_CACHE_LABELS),
    Exported("prefix_queries", "prefix_cache_queries", _COUNTER),
    Exported("prefix_hits", "prefix_cache_hits", _COUNTER),
    Exported("preemptions", "num_preemptions", _COUNTER),
    Exported("prompt_tokens", "prompt_tokens", _COUNTER),
    Exported("generation_tokens", "generation_tokens", _COUNTER),
    Exported("finished", "request_success", _COUNTER, labels=("finished_reason",)),
    Exported("ttft", "time_to_first_token_seconds", _HISTOGRAM, _TTFT_BUCKETS),
    Exported(
        "engine_ttft", "engine_time_to_first_token_seconds", _HISTOGRAM, _TTFT_BUCKETS,
        prefix="inferdeck",
    ),
    Exported("itl", "inter_token_latency_seconds", _HISTOGRAM, _ITL_BUCKETS),
    Exported("tpot", "request_time_per_output_token_seconds", _HISTOGRAM, _ITL_BUCKETS),
    Exported("e2e", "e2e_request_latency_seconds", _HISTOGRAM, _REQUEST_BUCKETS),
    Exported("queue", "request_queue_time_seconds", _HISTOGRAM, _REQUEST_BUCKETS),
    Exported("prefill", "request_prefill_time_seconds", _HISTOGRAM, _REQUEST_BUCKETS),
    Exported("decode", "request_decode_time_seconds", _HISTOGRAM, _REQUEST_BUCKETS),
    Exported("request_prompt", "request_prompt_tokens", _HISTOGRAM, _LENGTH_BUCKETS),
    Exported("request_output", "request_generation_tokens", _HISTOGRAM, _LENGTH_BUCKETS),
    Exported("draft_rounds", "spec_decode_num_drafts", _COUNTER),
    Exported("drafted", "spec_decode_num_draft_tokens", _COUNTER),
    Exported("accepted", "spec_decode_num_accepted_tokens", _COUNTER),
    Exported(
        "accepted_at", "spec_decode_num_accepted_tokens_per_pos", _COUNTER, labels=("position",)
    ),
    Exported("step_tokens", "iteration_tokens_total", _HISTOGRAM, _STEP_TOKEN_BUCKETS),
    Exported("heartbeat", "engine_heartbeat_age_seconds", prefix="inferdeck"),
)  # fmt: skip

EXPORTED: dict[str, Exported] = {exported.name: exported for exported in _DECLARED}
"""Every exported metric by its name without prefix."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of samples, in their unit. All None without samples; p99 is None under
    100 samples."""

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
            p50=_percentile(ordered, 0.5),
            p90=_percentile(ordered, 0.9),
            p99=_percentile(ordered, 0.99) if len(ordered) >= MIN_SAMPLES_FOR_P99 else None,
            max=ordered[-1],
            num_samples=len(ordered),
        )


def _percentile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1), linear between the nearest ranks (numpy's default method)."""
    rank = q * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


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


class EngineMetrics:
    """Accumulates the exported metrics; constant cost per event.

    Feed it each EngineSnapshot once (`observe_snapshot`), and each finished request.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {
            m.name: {} if m.labels else {(): 0.0}
            for m in EXPORTED.values()
            if m.kind is not MetricKind.HISTOGRAM
        }
        self._histograms = {
            m.name: _Histogram(m.buckets)
            for m in EXPORTED.values()
            if m.kind is MetricKind.HISTOGRAM
        }
        for reason in FinishReason:
            self._values["request_success"][(reason.value,)] = 0.0

    def observe_snapshot(self, snapshot: EngineSnapshot) -> None:
        """The state now, the running totals, and the steps and samples since the last one."""
        counters = snapshot.counters
        self._set("prefix_cache_queries", counters.prefix_queries)
        self._set("prefix_cache_hits", counters.prefix_hits)
        self._set("num_preemptions", counters.preemptions)
        self._set("prompt_tokens", counters.prompt_tokens + counters.cached_prompt_tokens)
        self._set("generation_tokens", counters.generation_tokens)
        if snapshot.speculation is not None:
            self._observe_drafts(snapshot.speculation)
        for record in snapshot.steps:
            num_tokens = sum(entry.num_tokens for entry in record.entries)
            self._histograms["iteration_tokens_total"].observe(num_tokens)
        for sample in snapshot.ttft:
            self._histograms["engine_time_to_first_token_seconds"].observe(sample.value)
        for sample in snapshot.itl:
            self._histograms["inter_token_latency_seconds"].observe(sample.value)
        self._set("num_requests_running", snapshot.num_running)
        self._set("num_requests_waiting", snapshot.num_waiting)
        self._set("kv_cache_usage_perc", snapshot.kv_usage)
        self._values["cache_config_info"] = {_cache_labels(snapshot): 1.0}

    def observe_heartbeat(self, seconds: float | None) -> None:
        """Seconds since the engine's last beat (`engine.heartbeat.Pulse`); None: not reported."""
        age: dict[Labels, float] = {} if seconds is None else {(): seconds}
        self._values["engine_heartbeat_age_seconds"] = age

    def observe_first_token(self, seconds: float) -> None:
        """Seconds from a request's arrival until its first token was sent."""
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def observe_finished(self, times: RequestTimes, reason: FinishReason) -> None:
        """Times of a finished request; those that it never reached are not counted."""
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
            (str(position),): float(count)
            for position, count in enumerate(drafts.accepted_per_position)
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
    """In the order of _CACHE_LABELS."""
    config, blocks = snapshot.config, snapshot.blocks
    settings = config.enable_prefix_caching, config.gpu_memory_utilization
    return tuple(map(str, (blocks.block_size, blocks.num_blocks, *settings)))
