"""The result of a change in words, with its confidence. No Qt.

    Max running requests 16 → 3: TTFT p50 63 ms → 3.15 s (50× longer), ITL: not enough seconds

Batch means: each range is cut into `BATCHES` parts, long enough to depend little on each other
although neighbouring seconds do. The spread of the parts' levels gives a confidence interval
(Student's t) for the ratio of the levels. TTFT is cut by requests, ITL and throughput by seconds:
tokens of one step share their gap, so they are one observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from app.features.tune.comparison import BETTER, LITTLE, REACH_S
from engine.snapshot.metrics import METRICS
from engine.units import change_text, duration_text, from_to, number, percent_text, short_figure
from widgets.live.history import SampleHistory
from widgets.plot.series import Floats

BATCHES = 6
CERTAIN, LIKELY = 4.587, 2.228
"""Quantiles of Student's t with 2 * (BATCHES - 1) degrees of freedom, both sides: 99.9 % for a
change, which is 99 % where neighbours correlate by 0.5; 95 % for "no clear change"."""
CONFIDENCE = "99 % confidence"
LONGEST_S = REACH_S - 1.0
"""Seconds of the range after a change in which all that may decide is measured."""
SAME = 0.05
""""No clear change": the whole interval lies within this fraction of no change."""
LEAST, WANTED = 2 * BATCHES, 20
"""Observations (requests or seconds) in each range for any claim; a claim names fewer samples."""
_FLOOR = 0.01
"""Smallest factor, and batch of latencies as a fraction of the largest."""
_NAMES = {"ttft": "TTFT", "itl": "ITL", "output": "mean throughput"}
_MORE = {"ttft": ("longer", "shorter"), "itl": ("longer", "shorter"), "output": ("higher", "lower")}


class State(Enum):
    CHANGED = auto()
    NO_CHANGE = auto()  # certainly a small one
    UNCERTAIN = auto()  # the noise is too large for either
    TOO_FEW = auto()  # more may come
    NOTHING_BEFORE = auto()  # and none will


@dataclass(frozen=True, slots=True)
class Observed:
    """A metric in one range. values: observations in order; level: the p50 of latencies, the mean
    of throughput (whose seconds without a token count)."""

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
        if not self.before.level or self.after.level is None:
            return State.NOTHING_BEFORE
        moved, error = abs(math.log(max(self.factor, _FLOOR))), self._error
        if moved > CERTAIN * error and abs(self.factor - 1) >= LITTLE:
            return State.CHANGED
        return State.NO_CHANGE if moved + LIKELY * error < SAME else State.UNCERTAIN

    @property
    def factor(self) -> float:
        """After over before."""
        return (self.after.level or 0.0) / self.before.level if self.before.level else math.nan

    @property
    def noise(self) -> float:
        """Half the width of the 95 % interval, as a fraction of the factor."""
        return math.expm1(LIKELY * self._error)

    @cached_property
    def _error(self) -> float:
        """Standard error of the logarithm of the factor."""
        return math.hypot(self._error_of(self.before), self._error_of(self.after))

    def _error_of(self, side: Observed) -> float:
        """Of the logarithm of a level, from the levels of its batches. Those of throughput are
        taken as they are, since a stall has no logarithm; those of latencies as logarithms, so
        that a few long ones do not hide a change of the others."""
        batches = np.array_split(side.values, BATCHES)
        if self.key == "output":
            levels = np.array([batch.mean() for batch in batches])
            spread = levels.std(ddof=1) / levels.mean() if levels.any() else 0.0
        else:
            medians = np.array([np.median(batch) for batch in batches])
            spread = np.log(np.maximum(medians, _FLOOR * medians.max())).std(ddof=1)
        return float(spread) / math.sqrt(BATCHES)

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
        """ "TTFT 9 of 12 samples"."""
        return self._counted(self.after)

    @property
    def before_progress(self) -> str:
        """The same of the range before."""
        return self._counted(self.before)

    def _counted(self, side: Observed) -> str:
        return f"{self.name} {side.count} of {LEAST} {self._unit}"

    @property
    def _levels(self) -> str:
        statistic = "" if self.key == "output" else " p50"
        levels = from_to(self.before.level, self.after.level, METRICS[self.key].unit)
        return f"{self.name}{statistic} {levels}"

    @property
    def is_open(self) -> bool:
        """Whether more samples may decide it."""
        return self.state in (State.UNCERTAIN, State.TOO_FEW)

    @property
    def about(self) -> str:
        """ "mean throughput about −45 %"."""
        return f"{self.name} about {size_text(self.key, self.factor)}"

    @property
    def words(self) -> str:
        """ "TTFT p50 84 → 252 ms (3× longer)", "mean throughput 82 → 55 tok/s (−33 %)"; why there
        is no such claim."""
        name, unit = self.name, self._unit
        match self.state:
            case State.CHANGED:
                fewest = min(self.before.count, self.after.count)
                few = f", {fewest} samples" if self.key == "ttft" and fewest < WANTED else ""
                return f"{self._levels} ({size_text(self.key, self.factor)}{few})"
            case State.NO_CHANGE:
                return f"{name}: no clear change (under {percent_text(SAME)})"
            case State.UNCERTAIN:
                return f"{self.about}, not certain"
            case State.TOO_FEW:
                return f"{name}: not enough {unit} ({self.after.count} of {LEAST})"
            case State.NOTHING_BEFORE:
                return f"{name}: {self.before.count} of {LEAST} {unit} before the change"


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


def headline(verdicts: Sequence[Verdict], seconds: float) -> tuple[list[Verdict], str]:
    """The metrics that changed, and beside them those that need more samples; the sentence where
    none changed. seconds: of the range after."""
    states = {verdict.state for verdict in verdicts}
    changed = [verdict for verdict in verdicts if verdict.state is State.CHANGED]
    if changed:
        return changed, ", ".join(verdict.words for verdict in verdicts if verdict.is_open)
    if all(not v.before.count and not v.after.count for v in verdicts):
        return [], "no requests, so nothing is measured"
    if State.UNCERTAIN in states:
        about = ", ".join(v.about for v in verdicts if v.state is State.UNCERTAIN)
        return [], f"{about}, not certain: {reach_text(seconds)} measured"
    if State.TOO_FEW in states:
        few = ", ".join(v.progress for v in verdicts if v.state is State.TOO_FEW)
        return [], f"not enough data ({few})"
    if State.NO_CHANGE in states:
        return [], f"no clear change (under {percent_text(SAME)})"
    if any(verdict.before.count for verdict in verdicts):
        few = ", ".join(v.before_progress for v in verdicts if v.before.count < LEAST)
        return [], f"not enough data before the change ({few})"
    return [], "no load before the change to compare with"


def reach_text(seconds: float) -> str:
    """ "25 of 60 s": more is measured while the load runs; "60 s"."""
    of = f"{number(seconds)} of " if seconds < LONGEST_S else ""
    return f"{of}{duration_text(REACH_S)}"
