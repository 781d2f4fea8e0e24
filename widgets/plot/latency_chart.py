"""TTFT or ITL: every sample a faint dot, p50 and p99 of the last seconds as lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.snapshot import Sample
from widgets.plot.clock import RedrawClock
from widgets.plot.data import HISTORY_S
from widgets.plot.series import (
    FEWEST_FOR_P99,
    EndLabel,
    RollingPercentiles,
    Series,
    SeriesKind,
    duration_text,
    number,
)
from widgets.plot.time_chart import TimeChart

MAX = "max"
_STEP_S = 0.5  # distance of two points of the percentile lines
_SAMPLES_KEPT = 65536  # at 500 tokens per second: the last two minutes


def _series(span_s: float) -> tuple[Series, ...]:
    span = f"of the last {duration_text(span_s)}"
    few = f"99th percentile {span} (of fewer than {FEWEST_FOR_P99} samples: their largest)"
    return (
        Series("samples", "samples", "sample_dot", SeriesKind.DOTS, tip="Every sample"),
        Series("p50", "p50", "p50", width=2.0, tip=f"Median {span}"),
        Series("p99", "p99", "p99", width=1.0, tip=few),
    )



class LatencyChart(TimeChart):
    """Milliseconds over time. `span_s`: how far back the percentiles of a moment reach.

    Fewer than 100 samples have no 99th percentile: the line is their largest then, and its label
    says "max".
    """

    def __init__(
        self,
        title: str,
        *,
        span_s: float,
        clock: RedrawClock,
        note: str = "",
        empty_text: str = "",
        time_source: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(
            title, "ms", _series(span_s), clock=clock, note=note, empty_text=empty_text,
            value_template="00,000", least_span=10.0, capacity=_SAMPLES_KEPT,
            time_source=time_source,
        )  # fmt: skip
        self.view.value_templates = (MAX, self.view.value_templates[1])  # the widest of the names
        self.span_s = span_s
        self._rolling = RollingPercentiles(self.data.history["samples"], span_s, _STEP_S, HISTORY_S)
        self._num_samples = 0

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Samples of the engine, in seconds."""
        if samples:
            self.extend("samples", [s.time for s in samples], [s.value * 1e3 for s in samples])

    def clear(self) -> None:
        super().clear()
        self._rolling.clear()

    def prepare(self, now: float) -> None:
        for at, found in self._rolling.advance(now):
            self.data.append("p50", at, found.p50)
            self.data.append("p99", at, found.p99)
            self._num_samples = found.num_samples

    def end_label(self, key: str, value: float) -> EndLabel:
        label = super().end_label(key, value)
        label = replace(label, value=number(value, 0 if value >= 10 else 1))
        if key == "p99" and self._num_samples < FEWEST_FOR_P99:
            return replace(label, label=MAX)
        return label
