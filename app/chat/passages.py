"""In which precision which part of a reply was written. No Qt.

A reply has a passage for every precision that the engine had while it was written, in order; most
have one. A switch in mid-reply begins another: the tokens before it stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from app.precision.words import change_words


class Passage(NamedTuple):
    """Written in `precision` from the character `start` on, after `num_tokens` tokens."""

    start: int
    num_tokens: int
    precision: str

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Passage:
        """Raises KeyError, TypeError or ValueError for what `_asdict` did not give."""
        start, num_tokens = int(stored["start"]), int(stored["num_tokens"])
        if start < 0 or num_tokens < 0 or not isinstance(stored["precision"], str):
            raise ValueError(f"no passage of a reply: {dict(stored)}")
        return cls(start, num_tokens, stored["precision"])


Passages = tuple[Passage, ...]


def followed(passages: Passages, text: str, num_tokens: int, precision: str) -> Passages:
    """`passages` of a reply that has `text` so far and goes on in `precision`."""
    last = passages[-1] if passages else None
    if last is not None and last.precision == precision:
        return passages
    if last is not None and last.num_tokens == num_tokens:  # nothing was written in it
        return followed(passages[:-1], text, num_tokens, precision)
    return (*passages, Passage(len(text), num_tokens, precision))


def kept(passages: Passages, num_tokens: int) -> Passages:
    """Those of a branch that keeps the first `num_tokens` tokens."""
    return tuple(p for p in passages if p.num_tokens < num_tokens)


def precisions_of(passages: Passages) -> str:
    """ "bf16", or "bf16 → bf16 · int8 weights"."""
    return " → ".join(passage.precision for passage in passages)


def marks_of(passages: Passages) -> tuple[tuple[int, str, str], ...]:
    """(character, label, explanation) of every place where the precision changed."""
    return tuple(
        (
            after.start,
            f"{change_words(before.precision, after.precision)} from here",
            f"The precision was changed from {before.precision} to {after.precision} after "
            f"{after.num_tokens:,} tokens. What was written before stayed as it was.",
        )
        for before, after in pairwise(passages)
    )


def note_of(passages: Passages) -> str:
    """A sentence for a copy or an export of a reply by several precisions; else ""."""
    if len(passages) < 2:
        return ""
    later = (f"from token {p.num_tokens + 1:,} on in {p.precision}" for p in passages[1:])
    return f"Written in {passages[0].precision}, {', '.join(later)}."


def as_stored(passages: Sequence[Passage]) -> tuple[Mapping[str, Any], ...]:
    return tuple(passage._asdict() for passage in passages)
