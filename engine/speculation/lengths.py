"""Chooses how many tokens to draft for each request, from acceptance and cost.

A step of T tokens takes about base + per_token * T seconds, a pass of the draft model about
per_pass. Both are measured on the live load. Steps replayed from captured graphs and steps launched
kernel by kernel have separate fits, since one more draft may turn a replayed step into a launched
one. A draft is worth the probability that it and those before it are accepted, in tokens. The most
valuable drafts are taken first, as many as maximize tokens per second: few where the batch is large
and compute-bound, none where the draft is bad. Pure Python: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_DECAY = 0.98  # per step: about the last fifty decide
_LEAST_SPREAD = 0.5  # variance of T below which a slope means nothing
_FEWEST = 4  # steps
_FEWEST_OF_KIND = 2.0  # below, the steps of a kind are taken for those of the other

Replays = Callable[[int, int], bool]
"""Whether a step of so many tokens, all sampled, is replayed; and how many more tokens its drafts
read, as rows of their own, than their requests would."""


class StepCost(NamedTuple):
    """The cost of a step in seconds: without tokens, per token, and per pass of the draft model.
    replayed: the first two for a replayed step, where they differ."""

    base: float
    per_token: float
    per_pass: float
    replayed: tuple[float, float] | None = None

    def step(self, num_tokens: int, is_replayed: bool = False) -> float:
        base, per_token = self.base, self.per_token
        if is_replayed and self.replayed is not None:
            base, per_token = self.replayed
        return base + per_token * num_tokens


class _Line:
    """Linear regression of seconds by tokens, with decaying weights for old steps."""

    def __init__(self) -> None:
        self.count = 0.0  # steps, old ones as far as they count
        self._x = self._xx = self._y = self._xy = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self.count = self.count * _DECAY + 1.0
        self._x = self._x * _DECAY + num_tokens
        self._xx = self._xx * _DECAY + num_tokens**2
        self._y = self._y * _DECAY + seconds
        self._xy = self._xy * _DECAY + num_tokens * seconds

    @property
    def slope(self) -> float | None:
        """None while the steps were too much alike."""
        if not self.count:
            return None
        mean_x, mean_y = self._x / self.count, self._y / self.count
        spread = self._xx / self.count - mean_x**2
        if spread < _LEAST_SPREAD:
            return None
        return max(0.0, (self._xy / self.count - mean_x * mean_y) / spread)

    def through(self, slope: float) -> tuple[float, float]:
        """(base, slope) through the middle of the steps."""
        mean_x, mean_y = self._x / self.count, self._y / self.count
        slope = min(slope, mean_y / mean_x)  # a base below zero is noise
        return mean_y - slope * mean_x, slope


class CostModel:
    """Fits `StepCost` to decode-only steps."""

    def __init__(self) -> None:
        self._launched, self._replayed = _Line(), _Line()
        self._passes = self._pass_s = 0.0

    def step(self, num_tokens: int, seconds: float, is_replayed: bool = False) -> None:
        (self._replayed if is_replayed else self._launched).add(num_tokens, seconds)

    def passes(self, count: int, seconds: float) -> None:
        """`count` passes of a draft took `seconds` together."""
        self._passes = self._passes * _DECAY + count
        self._pass_s = self._pass_s * _DECAY + seconds

    @property
    def cost(self) -> StepCost | None:
        """None while the steps were too few or too much alike. Where there are both kinds, the
        middle of either is known, and one whose steps were alike rises as the other does."""
        launched, replayed = self._launched, self._replayed
        if launched.count + replayed.count < _FEWEST or self._passes <= 0:
            return None
        per_pass = self._pass_s / self._passes
        if min(launched.count, replayed.count) < _FEWEST_OF_KIND:
            only = max(launched, replayed, key=lambda line: line.count)
            return None if only.slope is None else StepCost(*only.through(only.slope), per_pass)
        usual = next((s for s in (launched.slope, replayed.slope) if s is not None), 0.0)
        of_launched, of_replayed = (
            line.through(usual if line.slope is None else line.slope)
            for line in (launched, replayed)
        )
        return StepCost(*of_launched, per_pass, of_replayed)


def choose_lengths(
    worth: Sequence[Sequence[float]],
    cost: StepCost,
    contexts: Sequence[int] = (),
    replays: Replays = lambda num_tokens, extra: False,
) -> list[int]:
    """Drafts for each request that give the most tokens per second together.

    `worth[i]`: expected tokens of each draft that request i may have, in falling order.
    `contexts[i]`: its tokens, where any step is replayed.
    """
    drafts = sorted(
        ((value, j, i) for i, own in enumerate(worth) for j, value in enumerate(own, start=1)),
        key=lambda draft: (-draft[0], draft[1]),
    )
    tokens, computed, depth, extra = float(len(worth)), len(worth), 0, 0
    best, num_taken = tokens / max(cost.step(computed, replays(computed, extra)), 1e-12), 0
    for count, (value, j, i) in enumerate(drafts, start=1):
        tokens, computed, depth = tokens + value, computed + 1, max(depth, j)
        extra += contexts[i] + j - 1 if contexts else 1
        seconds = cost.step(computed, replays(computed, extra)) + depth * cost.per_pass
        rate = tokens / max(seconds, 1e-12)
        if rate > best:
            best, num_taken = rate, count
    lengths = [0] * len(worth)
    for _, j, i in drafts[:num_taken]:
        lengths[i] = max(lengths[i], j)
    return lengths
