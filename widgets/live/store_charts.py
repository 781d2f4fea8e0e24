"""Charts whose figures are the metric store's: `LatencyChart`, `TokenRateChart`, `CacheChart`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.snapshot import Sample
from engine.snapshot.metrics import METRICS
from engine.units import duration_text, whole
from widgets.live.figures import LATENCY_SPAN, latency_text
from widgets.live.metric_store import RATE_S, MetricStore
from widgets.live.totals import later
from widgets.plot.clock import RedrawClock
from widgets.plot.data import HISTORY_S
from widgets.plot.series import (
    FEWEST_FOR_P99,
    PREDICTED,
    EndLabel,
    Series,
    SeriesKind,
    predicted,
)
from widgets.plot.time_chart import TimeChart

BEFORE = "before"
SILENCE_S = 5.0
"""A longer pause between snapshots is a gap."""
_SAMPLES_KEPT = 65536  # at 500 tokens per second: the last two minutes
_LATENCIES = (
    Series("samples", "samples", "sample_dot", SeriesKind.DOTS, held=0.98,
           tip="Individual samples"),
    Series(BEFORE, BEFORE, "text_muted", hold=True, held=0.0, text=latency_text,
           tip="p50 before the last change"),
    Series("p50", "p50", "p50", width=2.0, held=0.95, text=latency_text,
           tip=f"Median {LATENCY_SPAN}"),
    Series("p99", "p99", "p99", held=0.5, text=latency_text,
           tip=f"99th percentile {LATENCY_SPAN} (maximum if fewer than {FEWEST_FOR_P99} samples)"),
    predicted("p50", latency_text),
)  # fmt: skip


class LatencyChart(TimeChart):
    """The latency `key` of `store` in milliseconds over time, and the p50 from before the last
    change as a level line.

    Fewer than 100 samples have no p99: the line is their maximum then, labelled "max of 12": older
    dots, and those that began before the last change, may be higher. A single one is "1 sample"."""

    def __init__(
        self,
        title: str,
        *,
        store: MetricStore,
        key: str,
        clock: RedrawClock,
        note: str = "",
        empty_text: str = "",
        time_source: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(
            title, "ms", _LATENCIES, clock=clock, note=note, empty_text=empty_text,
            value_template="1,000", least_span=10.0, capacity=_SAMPLES_KEPT,
            time_source=time_source,
        )  # fmt: skip
        self.view.value_templates = (BEFORE, self.view.value_templates[1])  # the widest names
        self.store, self.key = store, key
        self._taken = self._epoch_since = -math.inf
        self.set_available(BEFORE, False)

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Samples in seconds, drawn as dots."""
        if samples:
            self.extend("samples", [s.time for s in samples], [s.value * 1e3 for s in samples])

    def clear(self) -> None:
        super().clear()
        self._taken = self._epoch_since = -math.inf

    def prepare(self, now: float) -> None:
        line = self.store.line(self.key)
        self.data.extend("p50", *later(line.p50, self._taken))
        self.data.extend("p99", *later(line.high, self._taken))
        if len(line.p50):
            self._taken = float(line.p50.times[-1])
        self._show_before()

    def _show_before(self) -> None:
        epoch = self.store.epoch
        since = math.inf if epoch is None else epoch.start
        if since == self._epoch_since:
            return
        self._epoch_since = since
        before = self.store.before(self.key)
        ghost = math.nan if before is None or before.p50 is None else before.p50
        last = self.data.history[BEFORE].last()
        if not math.isnan(ghost) or (last is not None and not math.isnan(last[1])):
            at = self.store.last_time if epoch is None else since
            if last is not None:  # a level line up to here, then a gap
                at = max(at, last[0])
                self.data.extend(BEFORE, (at, at), (last[1], math.nan))
            self.data.append(BEFORE, at, ghost)
        self.set_available(BEFORE, not math.isnan(ghost))

    def _end_labels(self, now: float) -> list[EndLabel]:
        """The figures that the store shows, whatever the last point of the line."""
        shown, labels = self.store.latency(self.key, now), []
        if now - shown.newest <= self.shown_s:
            for key, value in (("p50", shown.p50), ("p99", shown.high)):
                if value is not None and self.is_shown(key):
                    labels.append(self.end_label(key, value))
            if shown.p99 is None:
                count = shown.num_samples
                name = "1 sample" if count == 1 else f"max of {count:,}"
                labels = [replace(one, label=name) if one.label == "p99" else one for one in labels]
        expected = self.data.newest(PREDICTED, now, self.shown_s)
        if expected is not None and self.is_shown(PREDICTED):
            labels.append(self.end_label(PREDICTED, expected))
        ghost = self.data.newest(BEFORE, now, self.shown_s)
        if ghost is not None and self.is_shown(BEFORE):
            is_above = ghost > self.view.y_range.high
            label = self.end_label(BEFORE, ghost)
            labels.append(replace(label, label=f"{BEFORE} ↑") if is_above else label)
        return labels


_DIRECTIONS = ("in", "out")


class TokenRateChart(TimeChart):
    """Tokens per second of `store`, at every whole second."""

    def __init__(
        self, store: MetricStore, clock: RedrawClock, time_source: Callable[[], float]
    ) -> None:
        span = f"mean of {duration_text(RATE_S)}"
        super().__init__(
            "Tokens per second", "tok/s",
            (
                Series("in", "in", "tokens_in", text=whole,
                       tip=f"Prompt tokens computed, excluding cached tokens, {span}"),
                Series("out", "out", "tokens_out", text=whole, tip=f"Generated tokens, {span}"),
                predicted("tokens_out", whole),
            ),
            clock=clock, heading="Tokens per second", value_template="0,000",
            least_span=10.0, time_source=time_source,
            empty_text="Throughput appears with the first request.",
        )  # fmt: skip
        self._store = store
        self._done: int | None = None  # the last second

    def wants_redraw(self) -> bool:
        """Also without new data: the last seconds have to be completed."""
        waits = not self.is_paused and bool(self._store.rate("out", self.time_source()))
        return waits or super().wants_redraw()

    def prepare(self, now: float) -> None:
        if self._store.snapshot is None:
            return
        last = self._store.last_second(now)
        first = max(self._done or math.floor(self._store.began), last - round(HISTORY_S))
        for second in range(first + 1, last + 1):
            for key in _DIRECTIONS:
                rate = self._store.rate_at(key, second)
                self.data.append(key, float(second), math.nan if rate is None else rate)
        self._done = max(last, first)

    def _end_labels(self, now: float) -> list[EndLabel]:
        """The figures that the store shows, whatever the last point of the line."""
        rates = {key: self._store.rate(key, now) for key in _DIRECTIONS if self.is_shown(key)}
        if self.is_shown(PREDICTED):
            rates[PREDICTED] = self.data.newest(PREDICTED, now, self.shown_s)
        return [self.end_label(key, rate) for key, rate in rates.items() if rate is not None]

    def clear(self) -> None:
        super().clear()
        self._done = None


class CacheChart(TimeChart):
    """KV usage and prefix hits, in percent."""

    def __init__(
        self, store: MetricStore, clock: RedrawClock, time_source: Callable[[], float]
    ) -> None:
        super().__init__(
            "KV cache", "%",
            (
                Series("kv_usage", "used", "kv_usage", hold=True, silence=SILENCE_S, text=whole,
                       tip=METRICS["kv_usage"].description),
                Series("prefix_hits", "prefix hits", "prefix_hits", hold=True, silence=SILENCE_S,
                       text=whole, tip="Prompt tokens served from the prefix cache "
                       f"{LATENCY_SPAN}"),
                predicted("kv_usage", whole),
            ),
            clock=clock, value_template="100", top=100.0, time_source=time_source,
            empty_text="KV usage and prefix hits appear when a model is loaded.",
        )  # fmt: skip
        self._store = store

    def _end_labels(self, now: float) -> list[EndLabel]:
        """Prefix hits only where the store has any since the last change."""
        labels = super()._end_labels(now)
        if self._store.prefix_hits(now) is None:
            labels = [label for label in labels if label.label != "prefix hits"]
        return labels
