"""Acceptance rates of drafts, and the measured speed-up. Pure Python: no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.snapshot import SpeedUp

_PRIOR_WEIGHT = 2.0  # drafts; the weight of the usual rate at the beginning
_USUAL = 0.7  # before anything was seen
_MOST = 0.99  # never 1, so that a longer draft is never quite free
_PLACE_DECAY = 0.97  # per round of any request: about the last thirty decide
_DECAY = 0.85  # per round: about the last seven decide


class Acceptance:
    """Probability that a draft is accepted if the previous one was, from the recent rounds.

    A round that drafted k tokens and accepted a has tested min(a + 1, k) of them: those after the
    first rejected one carry no information.
    """

    def __init__(self, usual: float = _USUAL) -> None:
        self._tried = _PRIOR_WEIGHT
        self._kept = usual * _PRIOR_WEIGHT

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        self._tried = self._tried * _DECAY + min(num_accepted + 1, num_drafts)
        self._kept = self._kept * _DECAY + num_accepted

    @property
    def rate(self) -> float:
        """0 to 0.99."""
        return min(self._kept / self._tried, _MOST)


class PositionAcceptance:
    """Acceptance rate by position in the draft, given that the previous drafts were accepted, over
    all requests: draft models are often accurate for a few tokens only."""

    def __init__(self) -> None:
        self._tried: list[float] = []
        self._kept: list[float] = []

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        for place in range(min(num_accepted + 1, num_drafts)):
            if place == len(self._tried):
                prior = self.rate(place)
                self._tried.append(_PRIOR_WEIGHT)
                self._kept.append(prior * _PRIOR_WEIGHT)
            self._tried[place] = self._tried[place] * _PLACE_DECAY + 1.0
            self._kept[place] = self._kept[place] * _PLACE_DECAY + (place < num_accepted)

    def rate(self, place: int) -> float:
        """Of the draft at `place` (from 0); the last that was tried, beyond it."""
        if not self._tried:
            return _USUAL
        place = min(place, len(self._tried) - 1)
        return self._kept[place] / self._tried[place]

    def worth(self, count: int, scale: float = 1.0) -> list[float]:
        """Expected tokens of each of `count` drafts: the probability that it and all before it are
        accepted. `scale`: a request's acceptance relative to the usual."""
        values, reached = [], 1.0
        for place in range(count):
            reached *= min(self.rate(place) * scale, _MOST)
            values.append(reached)
        return values


def expected_tokens(rate: float, num_drafts: int) -> float:
    """Tokens that a round gives: 1 + rate + rate^2 ... (Leviathan et al. 2023)."""
    if rate >= 1.0:
        return num_drafts + 1.0
    return float((1.0 - rate ** (num_drafts + 1)) / (1.0 - rate))


def num_accepted(drafts: Sequence[int], token_ids: Sequence[int]) -> int:
    """Number of drafts, from the first, that equal the resulting tokens."""
    for i, (draft, token_id) in enumerate(zip(drafts, token_ids, strict=False)):
        if draft != token_id:
            return i
    return min(len(drafts), len(token_ids))


PROBE_INTERVAL = 64
_FIRST_PROBES = 8
_MEMORY = 0.995  # per step: some hundred of the last steps decide
_FEWEST_PLAIN = 3


@dataclass(slots=True)
class _Steps:
    """Tokens and seconds of steps, with decaying weights for old steps."""

    count: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float, memory: float) -> None:
        self.count += 1
        self.tokens = self.tokens * memory + tokens
        self.seconds = self.seconds * memory + seconds


class SpeedMeter:
    """Compares steps with and without drafts, by the number of decoding requests."""

    def __init__(self) -> None:
        self._drafted: defaultdict[int, _Steps] = defaultdict(_Steps)
        self._plain: defaultdict[int, _Steps] = defaultdict(_Steps)
        self._since_probe = 0
        self._interval = _FIRST_PROBES

    def wants_plain_step(self) -> bool:
        """Whether the next step with drafts should run without them, for comparison."""
        return self._since_probe >= self._interval

    def observe(self, num_requests: int, num_tokens: int, seconds: float, drafted: bool) -> None:
        """A step in which `num_requests` requests decoded and nothing else gave `num_tokens`."""
        if drafted:
            self._since_probe += 1
            self._drafted[num_requests].add(num_tokens, seconds, _MEMORY)
            return
        # a plain step in sixty-four has to be remembered as long as those between them
        self._plain[num_requests].add(num_tokens, seconds, _MEMORY**8)
        if self._since_probe:
            self._interval = min(self._interval * 2, PROBE_INTERVAL)
        self._since_probe = 0

    @property
    def speed_up(self) -> SpeedUp | None:
        """None until there are steps of both kinds at one number of requests."""
        pairs = [
            (drafted, self._plain[size])
            for size, drafted in self._drafted.items()
            if self._plain[size].count >= _FEWEST_PLAIN
        ]
        with_drafts = sum(drafted.seconds for drafted, _ in pairs)
        without = sum(drafted.tokens * plain.seconds / plain.tokens for drafted, plain in pairs)
        counts = (sum(one.count for one in kind) for kind in zip(*pairs, strict=True))
        return SpeedUp(without / with_drafts, *counts) if with_drafts > 0.0 else None
