"""Percentiles over a sliding span of time, on a fixed grid of times."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from widgets.charts.ring import Floats, RingBuffer

_MOST_AT_ONCE = 120  # percentiles of one call: about 20 ms
FEWEST_FOR_P99 = 100  # below, the 99th percentile is no more than the largest sample


class Percentiles(NamedTuple):
    """p50 and p99 of `num_samples` samples; for fewer than 100 the largest stands for p99."""

    p50: float
    p99: float
    num_samples: int


def percentiles(values: Floats) -> Percentiles:
    """Of samples without NaN; NaN for none."""
    count = len(values)
    if not count:
        return Percentiles(math.nan, math.nan, 0)
    if count < FEWEST_FOR_P99:
        return Percentiles(float(np.median(values)), float(values.max()), count)
    p50, p99 = np.percentile(values, (50, 99))
    return Percentiles(float(p50), float(p99), count)


class RollingPercentiles:
    """p50 and p99 of the samples of the last `span` seconds, every `step` seconds.

    The grid makes the lines independent of how often they are drawn. `advance` computes only what
    is new, at most `longest` seconds of it, and on a coarser grid where that is much: coming back
    to a chart that was hidden must not stall the window.
    """

    def __init__(self, samples: RingBuffer, span: float, step: float, longest: float) -> None:
        self.samples = samples
        self.span = span
        self.step = step
        self.longest = longest
        self._done: int | None = None  # number of the last grid time that was computed

    def clear(self) -> None:
        self._done = None

    def advance(self, now: float) -> list[tuple[float, Percentiles]]:
        """(time, percentiles) of every grid time up to `now` that was not given before."""
        last = math.floor(now / self.step)
        oldest = last - round(self.longest / self.step)
        if self._done is None:
            if not len(self.samples):
                return []
            first_time = float(self.samples.times[0])
            self._done = max(math.ceil(first_time / self.step) - 1, oldest)
        first = max(self._done, oldest) + 1
        stride = -(-(last + 1 - first) // _MOST_AT_ONCE) if last >= first else 1
        numbers = [n for n in range(first, last + 1) if n % stride == 0]
        self._done = max(last, self._done)
        at = [number * self.step for number in numbers]
        return [(t, percentiles(self.samples.between(t - self.span, t))) for t in at]
