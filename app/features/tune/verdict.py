"""The result of a change in words, with its confidence. No Qt.

    Max running requests 16 → 3: TTFT 50× longer, throughput −33 %

A metric changed if a rank test (Mann-Whitney) says so and its level moved by `LITTLE` or more. The
test compares requests for TTFT, and seconds for ITL and throughput: tokens of one step share their
gap, so they are one observation. Serial correlation lowers the number of observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from app.features.tune.comparison import BETTER, LITTLE, change
from engine.units import change_text, short_figure
from widgets.live.history import SampleHistory
from widgets.plot.series import Floats

FALSE_CLAIMS = 0.001
"""Upper bound on false positives of one test. A range that grows is tested once a second."""
LEAST, WANTED = 8, 20
"""Observations (requests or seconds) in each range for any claim, and for "no clear change"."""
MOST_CORRELATED = 0.6
"""Neighbours beyond this are a trend, such as a growing queue, which a change may well cause."""
_NAMES = {"ttft": "TTFT", "itl": "ITL", "output": "throughput"}
_MORE = {"ttft": ("longer", "shorter"), "itl": ("longer", "shorter"), "output": ("higher", "lower")}


class State(Enum):
    CHANGED = auto()
    NO_CHANGE = auto()  # within the spread
    TOO_FEW = auto()  # more may come
    NOTHING_BEFORE = auto()  # and none will


@dataclass(frozen=True, slots=True)
class Observed:
    """A metric in one range. values: independent observations in order; level: the p50 of
    latencies, the mean of throughput (whose seconds without a token count)."""

    values: Floats
    level: float | None

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Verdict:
    key: str
    before: Observed
    after: Observed

    @cached_property
    def state(self) -> State:
        if self.before.count < LEAST:
            return State.NOTHING_BEFORE
        if self.after.count < LEAST:
            return State.TOO_FEW
        share = change(self.before.level, self.after.level)
        is_large = share is not None and abs(share) >= LITTLE
        if is_large and p_value(self.before.values, self.after.values) < FALSE_CLAIMS:
            return State.CHANGED
        return State.TOO_FEW if self.after.count < WANTED else State.NO_CHANGE

    @property
    def factor(self) -> float:
        """After over before."""
        return (self.after.level or 0.0) / self.before.level if self.before.level else math.nan

    @property
    def is_better(self) -> bool:
        return (self.factor > 1) == (BETTER[self.key] > 0)

    @property
    def name(self) -> str:
        return _NAMES[self.key]

    @property
    def _unit(self) -> str:
        return "samples" if self.key == "ttft" else "seconds"

    @property
    def progress(self) -> str:
        """ "TTFT 9 of 20 samples"."""
        return f"{self.name} {self.after.count} of {WANTED} {self._unit}"

    @property
    def words(self) -> str:
        """ "TTFT 50× longer", "throughput −33 %"; why there is no such claim."""
        name, unit = self.name, self._unit
        match self.state:
            case State.CHANGED:
                fewest = min(self.before.count, self.after.count)
                few = f" ({fewest} samples)" if self.key == "ttft" and fewest < WANTED else ""
                return f"{name} {size_text(self.key, self.factor)}{few}"
            case State.NO_CHANGE:
                return f"{name}: no clear change"
            case State.TOO_FEW:
                return f"{name}: not enough {unit} yet ({self.after.count} of {WANTED})"
            case State.NOTHING_BEFORE:
                return f"{name}: {self.before.count} {unit} before the change, {LEAST} needed"


def size_text(key: str, factor: float) -> str:
    """ "50× longer", "−33 %": a factor from 2 on, else percent."""
    larger = factor >= 1
    times = factor if larger else 1 / factor if factor else math.inf
    if times >= 2 and math.isfinite(times):
        return f"{short_figure(times, 2)}× {_MORE[key][not larger]}"
    return change_text(factor - 1)


def judge(
    history: SampleHistory, before: tuple[float, float], after: tuple[float, float]
) -> list[Verdict]:
    """Of TTFT, ITL and throughput in both ranges (start and end, engine time)."""
    found = [history.observed(*ends) for ends in (before, after)]
    return [Verdict(key, *(Observed(*side[key]) for side in found)) for key in _NAMES]


def headline(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], str]:
    """The metrics that changed, and the sentence where none did."""
    states = {verdict.state for verdict in verdicts}
    changed = [verdict for verdict in verdicts if verdict.state is State.CHANGED]
    if changed:
        return changed, ""
    if all(not v.before.count and not v.after.count for v in verdicts):
        return [], "no requests, so nothing is measured"
    if State.TOO_FEW in states:
        few = ", ".join(v.progress for v in verdicts if v.state is State.TOO_FEW)
        return [], f"not enough data yet ({few})"
    if State.NO_CHANGE in states:
        return [], "no clear change"
    return [], "no load before the change to compare with"


def p_value(a: Floats, b: Floats) -> float:
    """Two-sided, of the hypothesis that both are draws of one distribution: normal approximation
    with ties, corrected for continuity and for serial correlation."""
    n, m = len(a), len(b)
    if not n or not m:
        return 1.0
    both = np.concatenate((a, b))
    ordered, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[place]
    total = n + m
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (total * (total - 1))
    variance = n * m / 12 * (total + 1 - ties)
    if len(ordered) < 2 or variance <= 0:
        return 1.0
    variance *= max(_inflation(ranks[:n]), _inflation(ranks[n:]))
    away = abs(float(ranks[:n].sum()) - n * (total + 1) / 2)
    return math.erfc(max(away - 0.5, 0.0) / math.sqrt(2 * variance))


def _inflation(ranks: Floats) -> float:
    """Of the variance of a mean, by the correlation of neighbours; at least 1."""
    centred = ranks - ranks.mean()
    power = float((centred**2).sum())
    if len(ranks) < 3 or not power:
        return 1.0
    rho = min(max(float((centred[1:] * centred[:-1]).sum()) / power, 0.0), MOST_CORRELATED)
    return (1 + rho) / (1 - rho)


def busy_text(cores: float) -> str:
    """ "Machine busy: other programs use 1.4 cores"; "" for an idle machine."""
    if not cores:
        return ""
    return f"Machine busy: other programs use {cores:.1f} cores"
