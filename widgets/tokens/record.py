"""One token of a reply as the strip shows it. No Qt."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

UNLIKELY = 0.1
"""Below this probability a token is marked."""


class Origin(StrEnum):
    """How a token came into the reply."""

    SAMPLED = "sampled"
    KEPT = "kept"  # of the version that this one branched from
    CHOSEN = "chosen"  # by the user, in place of another


class Alternative(NamedTuple):
    """A token that could have stood there, with its log probability (natural)."""

    token_id: int
    text: str
    logprob: float

    @property
    def probability(self) -> float:
        return math.exp(self.logprob)


class TokenRecord(NamedTuple):
    """A token, its log probability (natural) and its rank (1 is the most probable), both of the
    model's own distribution, before temperature. `alternatives`: the most probable tokens at its
    place, the token itself among them where it is one, in falling order. `is_draft`: it was drafted
    and stood. `rejected`: the texts of drafts that did not, the first of them at its place."""

    token_id: int
    text: str
    logprob: float
    rank: int
    alternatives: tuple[Alternative, ...] = ()
    origin: Origin = Origin.SAMPLED
    is_draft: bool = False
    rejected: tuple[str, ...] = ()

    @property
    def probability(self) -> float:
        return math.exp(self.logprob)

    @property
    def is_unlikely(self) -> bool:
        return self.probability < UNLIKELY

    @property
    def choices(self) -> tuple[Alternative, ...]:
        """The alternatives, with the token itself last where it is none of them."""
        if any(known.token_id == self.token_id for known in self.alternatives):
            return self.alternatives
        return (*self.alternatives, Alternative(self.token_id, self.text, self.logprob))

    @property
    def num_choices(self) -> int:
        return len(self.alternatives) + (self.rank > len(self.alternatives))

    @property
    def entropy_bits(self) -> float | None:
        """At least so many bits: what is not among the known tokens counts as one. None where
        no alternatives are known."""
        if not self.alternatives:
            return None
        known = [choice.probability for choice in self.choices]
        rest = max(0.0, 1.0 - sum(known))
        return sum(-p * math.log2(p) for p in (*known, rest) if p > 0.0)
