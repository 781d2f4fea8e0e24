"""`TokenRecord`: one token of a reply with its alternatives. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

UNLIKELY = 0.1
"""Tokens below this probability are marked."""


class Origin(StrEnum):
    """Origin of a token in the reply."""

    SAMPLED = "sampled"
    KEPT = "kept"  # from the version that this one branches from
    CHOSEN = "chosen"  # by the user


class Alternative(NamedTuple):
    """An alternative token with its log probability (natural)."""

    token_id: int
    text: str
    logprob: float

    @property
    def probability(self) -> float:
        return math.exp(self.logprob)


class TokenRecord(NamedTuple):
    """A token, its log probability (natural) and its rank (1 is the most probable), both before
    temperature.

    `alternatives`: the most probable tokens at its place, in descending order, possibly with the
    token itself. `is_draft`: an accepted draft. `rejected`: texts of the rejected drafts that it
    replaces, the first of them at its place."""

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
        """The alternatives, with the token itself appended if it is not among them."""
        if any(known.token_id == self.token_id for known in self.alternatives):
            return self.alternatives
        return (*self.alternatives, Alternative(self.token_id, self.text, self.logprob))

    @property
    def num_choices(self) -> int:
        return len(self.alternatives) + (self.rank > len(self.alternatives))

    @property
    def entropy_bits(self) -> float | None:
        """A lower bound: all unknown tokens count as one. None without alternatives."""
        if not self.alternatives:
            return None
        known = [choice.probability for choice in self.choices]
        rest = max(0.0, 1.0 - sum(known))
        return sum(-p * math.log2(p) for p in (*known, rest) if p > 0.0)


_SIGNS = str.maketrans({"\n": "↵", "\r": "␍", "\t": "⇥", "\0": "␀"})
_ORIGINS = {Origin.KEPT: "reused from the previous version", Origin.CHOSEN: "manually selected"}


def shown(text: str) -> str:
    """A token's text in a row, with symbols for line breaks."""
    return text.translate(_SIGNS) or "∅"


def quoted(text: str) -> str:
    """A token in a sentence, with visible spaces."""
    return f"“{shown(text).replace(' ', '␣')}”"


def percent(probability: float) -> str:
    """At most three digits: 99.9 %, 4.2 %, 0.03 %, < 0.01 %."""
    value = 100 * probability
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.2f} %" if value < 1 else f"{value:.1f} %"


def token_text(records: Sequence[TokenRecord], index: int) -> str:
    record = records[index]
    parts = [
        f"Token {index + 1:,} of {len(records):,}: {quoted(record.text)}",
        percent(record.probability),
        f"rank {record.rank:,}",
    ]
    if record.entropy_bits is not None:
        parts.append(f"entropy ≥ {record.entropy_bits:.2f} bits")
    if record.origin in _ORIGINS:
        parts.append(_ORIGINS[record.origin])
    if record.is_draft:
        parts.append("accepted draft token")
    if record.rejected:
        first, *others = record.rejected
        more = f" and {len(others)} more" if others else ""
        parts.append(f"replaces rejected draft token {quoted(first)}{more}")
    return " · ".join(parts)


def summary_text(records: Sequence[TokenRecord]) -> str:
    """One-line summary of the reply."""
    if not records:
        return ""
    unlikely = sum(record.is_unlikely for record in records)
    first = sum(record.rank == 1 for record in records)
    bits = fmean(-record.logprob for record in records)
    count = "1 token" if len(records) == 1 else f"{len(records):,} tokens"
    return (
        f"{count} · {percent(first / len(records))} at rank 1 · "
        f"{unlikely:,} below {UNLIKELY * 100:.0f} % · mean logprob −{bits:.2f}"
    )
