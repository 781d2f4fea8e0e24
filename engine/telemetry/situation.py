"""`Situation`: recent steps, and how long they would have taken with other work. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.hardware.peaks import Peaks
from engine.snapshot import EngineSnapshot
from engine.telemetry.step_cost import CostedStep, ModelCost, Split, Work, least_times, total

SLOWED, FEW = 5.0, 0.05
"""A step is slowed down that takes so many times as long as the median one, each relative to its
time at the peaks; if no more than this share of the steps is."""


@dataclass(frozen=True)
class Situation:
    """What the bounds are made from: the costed steps, and the engine after them."""

    steps: Sequence[CostedStep]
    model: ModelCost
    peaks: Peaks
    snapshot: EngineSnapshot

    @cached_property
    def whole(self) -> Split:
        """The sum of all splits."""
        return total(self.steps)

    @cached_property
    def decoding(self) -> Situation:
        """The steps alone that do nothing but decode."""
        chosen = [s for s in self.steps if s.batch.only_decodes]
        return self if len(chosen) == len(self.steps) else dataclasses.replace(self, steps=chosen)

    @cached_property
    def usual(self) -> Situation:
        """Without the few steps that something else slowed down: their time is no property of a
        setting."""
        floor = np.asarray(self.splits.floor)
        ratios = np.divide(self.splits.total, floor, out=np.zeros_like(floor), where=floor > 0)
        slow = ratios > SLOWED * np.median(ratios)
        if not 0 < slow.sum() <= max(1, FEW * len(slow)) < len(slow):
            return self
        chosen = [one for one, is_slow in zip(self.steps, slow, strict=True) if not is_slow]
        return dataclasses.replace(self, steps=chosen)

    @cached_property
    def works(self) -> NDArray[np.float64]:
        """A `Work` per row. Vectorized, as the two below: a loop over steps and settings would hold
        the interpreter."""
        return np.array([s.work for s in self.steps]).reshape(-1, len(Work._fields))

    @cached_property
    def splits(self) -> Split:
        """Whose parts are arrays with a value of each step."""
        return Split(*np.array([s.split for s in self.steps]).reshape(-1, len(Split._fields)).T)

    @cached_property
    def rows(self) -> NDArray[np.float64]:
        """Tokens that each step computed."""
        return np.array([s.batch.counts.tokens for s in self.steps], dtype=float)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        return np.array([s.speed for s in self.steps])


def range_of(
    situation: Situation, change: Callable[[Work], Work], ratio: float | None = None
) -> tuple[float, float]:
    """Speed-up of a setting that reduces the work of every step: the low end leaves all other time
    unchanged, the high end scales the model's time beyond the peaks by `ratio` (None: in proportion
    to the time at the peaks)."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    changed = _changed(situation, change)
    kept = np.divide(changed, floor, out=np.ones_like(floor), where=floor > 0)
    after = float(np.sum(changed + (splits.total - floor)))
    least = after - float(np.sum(splits.launch * (1 - (kept if ratio is None else ratio))))
    before = situation.whole.total
    return times_faster(before, after), times_faster(before, least)


def _changed(situation: Situation, change: Callable[[Work], Work]) -> NDArray[np.float64]:
    """Counted seconds of every step with changed work."""
    work = np.stack(change(Work(*situation.works.T)), axis=1)
    return least_times(work, situation.peaks) * situation.speeds


def slower_by(
    situation: Situation,
    change: Callable[[Work], Work],
    growth: float,
    more: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float]:
    """Factor by which steps take longer with `growth` times the rows: the low end scales the time
    at the peaks alone, the high end also the rest, except reading the weights. more: seconds that
    the measured kernels take longer in all steps, at least and at most."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    changed = _changed(situation, change)
    least = float(np.sum(changed + (splits.total - floor)))
    rest = splits.total - floor - splits.queue
    most = least + float(np.sum(rest)) * (growth - 1)
    before = situation.whole.total
    least, most = max(least, before + more[0]), max(most, before + more[1])
    return (least / before, most / before) if before else (1.0, 1.0)


def times_faster(before: float, after: float) -> float:
    """At least 1."""
    return max(1.0, before / after) if after > 0 else 1.0
