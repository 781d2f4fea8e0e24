"""How many tokens to draft for whom: what drafts are worth against what they cost.

A step of T tokens takes about base + per_token * T seconds, a pass of the draft model about
per_pass. Both are measured on the live load. A draft is worth as many tokens as the probability
that it and those before it stand. The drafts that are worth most come first, and as many of them
are taken as give the most tokens per second: few where the batch is large and arithmetic counts,
none where the draft is bad. Pure Python: no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_DECAY = 0.98  # per step: about the last fifty decide
_LEAST_SPREAD = 0.5  # variance of T below which a slope means nothing


class StepCost(NamedTuple):
    """Seconds: a step of no tokens, each token of a step, and a pass of the draft model."""

    base: float
    per_token: float
    per_pass: float

    def step(self, num_tokens: int) -> float:
        return self.base + self.per_token * num_tokens


class CostModel:
    """Fits `StepCost` to the steps in which requests only decoded (linear regression in which old
    steps count less and less)."""

    def __init__(self) -> None:
        self._n = self._x = self._xx = self._y = self._xy = 0.0
        self._passes = self._pass_s = 0.0

    def step(self, num_tokens: int, seconds: float) -> None:
        self._n = self._n * _DECAY + 1.0
        self._x = self._x * _DECAY + num_tokens
        self._xx = self._xx * _DECAY + num_tokens**2
        self._y = self._y * _DECAY + seconds
        self._xy = self._xy * _DECAY + num_tokens * seconds

    def passes(self, count: int, seconds: float) -> None:
        """`count` passes of a draft took `seconds` together."""
        self._passes = self._passes * _DECAY + count
        self._pass_s = self._pass_s * _DECAY + seconds

    @property
    def cost(self) -> StepCost | None:
        """None while the steps were too few or too much alike."""
        if self._n < 4 or self._passes <= 0:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x**2
        if spread < _LEAST_SPREAD:
            return None
        slope = max(0.0, (self._xy / self._n - mean_x * mean_y) / spread)
        slope = min(slope, mean_y / mean_x)  # a base below zero is noise
        return StepCost(mean_y - slope * mean_x, slope, self._pass_s / self._passes)


def choose_lengths(worth: Sequence[Sequence[float]], cost: StepCost) -> list[int]:
    """Drafts for each request that give the most tokens per second together.

    `worth[i]`: expected tokens of each draft that request i may have, in falling order.
    """
    drafts = sorted(
        ((value, j, i) for i, own in enumerate(worth) for j, value in enumerate(own, start=1)),
        key=lambda draft: (-draft[0], draft[1]),
    )
    tokens, computed, depth = float(len(worth)), len(worth), 0
    best, num_taken = tokens / max(cost.step(computed), 1e-12), 0
    for count, (value, j, _) in enumerate(drafts, start=1):
        tokens, computed, depth = tokens + value, computed + 1, max(depth, j)
        rate = tokens / max(cost.step(computed) + depth * cost.per_pass, 1e-12)
        if rate > best:
            best, num_taken = rate, count
    lengths = [0] * len(worth)
    for _, j, i in drafts[:num_taken]:
        lengths[i] = max(lengths[i], j)
    return lengths
