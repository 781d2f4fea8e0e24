"""/metrics: the engine's registry of metrics in Prometheus' formats, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from engine.telemetry.metrics import (
    EXPORTED,
    Exported,
    HistogramSnapshot,
    MetricKind,
    MetricsSnapshot,
)

COMMON_LABELS = ("model_name", "engine")
"""vLLM's labels of every sample; engines are numbered from 0."""


class EngineCollector(Collector):
    """Metrics at one moment. `model_name`: the name under /v1/models."""

    def __init__(self, now: MetricsSnapshot, model_name: str) -> None:
        self._now = now
        self._model_name = model_name

    def collect(self) -> Iterator[Family]:
        now = self._now
        common = [self._model_name, "0"]
        for metric in EXPORTED.values():
            if metric.kind is MetricKind.HISTOGRAM:
                yield _histogram(metric, common, now.histograms[metric.name])
                continue
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            name = metric.exported_name.removesuffix("_total")  # the format adds it to samples
            family = kind(name, metric.help, labels=[*COMMON_LABELS, *metric.labels])
            for labels, value in now.values[metric.name].items():
                family.add_metric([*common, *labels], value)
            yield family


def _histogram(
    metric: Exported, common: list[str], now: HistogramSnapshot
) -> HistogramMetricFamily:
    bounds = [*(f"{bound:g}" if bound < 1e6 else str(bound) for bound in now.buckets), "+Inf"]
    buckets = list(zip(bounds, map(float, now.cumulative), strict=True))
    family = HistogramMetricFamily(metric.exported_name, metric.help, labels=COMMON_LABELS)
    family.add_metric(common, buckets, sum_value=now.sum)
    return family


def exposition(now: MetricsSnapshot, model_name: str, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that `accept` prefers, and its content type. Takes milliseconds."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(now, model_name))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
