"""`Figures` and `Shown`: statistics of latency samples. No Qt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from widgets.plot.series import FEWEST_FOR_P99, Floats

FEW = 20
"""Fewer samples than this are called few: a median of them still moves by tens of percent."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of one range. p99 of fewer than 100 samples is None. `other_cores`: cores that
    other programs took from the engine's threads; 0 for a machine that was not busy, or unknown."""

    num_samples: int = 0
    p50: float | None = None
    p99: float | None = None
    largest: float | None = None
    other_cores: float = 0.0

    @classmethod
    def of(cls, values: Floats, other_cores: float = 0.0) -> Figures:
        """NaN values are no samples."""
        return cls(*_statistics(values), other_cores)

    @property
    def is_few(self) -> bool:
        return 0 < self.num_samples < FEW

    @property
    def is_busy_machine(self) -> bool:
        return self.other_cores > 0

    @property
    def high(self) -> float | None:
        """p99, or the largest of fewer than 100 samples."""
        return self.largest if self.p99 is None else self.p99


@dataclass(frozen=True, slots=True)
class Shown(Figures):
    """What the window shows of a latency, in ms, on the engine's clock: of the samples from `since`
    (the last change at the earliest) to `newest`."""

    since: float = -math.inf
    newest: float = -math.inf

    @classmethod
    def between(cls, values: Floats, other_cores: float, since: float, newest: float) -> Shown:
        return cls(*_statistics(values), other_cores, since, newest)


def _statistics(values: Floats) -> tuple[int, float | None, float | None, float | None]:
    # sorting takes numpy a third of the time that percentiles without order do; NaN comes last
    ordered = np.sort(values)
    ordered = ordered[: int(np.searchsorted(ordered, math.nan))]
    count = len(ordered)
    if not count:
        return 0, None, None, None
    p99 = _percentile(ordered, 99) if count >= FEWEST_FOR_P99 else None
    return count, _percentile(ordered, 50), p99, float(ordered[-1])


def _percentile(ordered: Floats, percent: float) -> float:
    """As numpy's, between neighbours in proportion."""
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (place - below)
