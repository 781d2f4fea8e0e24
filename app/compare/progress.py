"""How far a comparison is, in words. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from app.compare.record import LEFT, RIGHT, Comparison

SIDES = (LEFT, RIGHT)


def answering_words(comparison: Comparison, sides: Sequence[int]) -> str:
    """ "Prompt 2 of 5, by bf16": `sides` are asked now."""
    count = len(comparison.pairs)
    done = sum(pair.answers[sides[0]] is not None for pair in comparison.pairs)
    names = " and ".join(comparison.sides[side].title for side in sides)
    return f"Prompt {min(done + 1, count):,} of {count:,}, by {names}"


def answers_left_s(comparison: Comparison, seconds: Sequence[Sequence[float]]) -> float | None:
    """Of answers, as long as those of their side took (`seconds`); None until one was timed."""
    known = [*seconds[LEFT], *seconds[RIGHT]]
    if not known:
        return None
    return sum(
        sum(pair.answers[side] is None for pair in comparison.pairs) * fmean(seconds[side] or known)
        for side in SIDES
    )


def with_time(text: str, left_s: float | None) -> str:
    return text if left_s is None else f"{text} · about {max(1, round(left_s)):,} s left"
