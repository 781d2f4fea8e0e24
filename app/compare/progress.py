"""How far a comparison is, in words. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from statistics import fmean

from app.compare.record import LEFT, RIGHT, Comparison

SIDES = (LEFT, RIGHT)
SIDE_NAMES = ("left", "right")


class Phase(Enum):
    IDLE = auto()
    WEIGHING = auto()  # what the other side needs
    LOADING = auto()  # an engine beside the one of the window
    ANSWERING = auto()
    SWITCHING = auto()  # the engine of the window


@dataclass(frozen=True, slots=True)
class Stand:
    """How far a comparison is that runs. The engine of the window is `at`, on its way to `target`,
    and goes back to `home`; `own` is the side that it is first. `asked`: sides that answer now."""

    comparison: Comparison
    phase: Phase
    own: int
    at: int
    target: int
    home: int
    is_in_turn: bool
    stays: bool
    asked: Sequence[int]

    @property
    def words(self) -> str:
        """What happens now."""
        name = self.comparison.name_of
        match self.phase:
            case Phase.WEIGHING:
                return "Looking whether both sides fit the memory at once"
            case Phase.LOADING:
                return f"Loading {name(self._other)} beside the engine of the window"
            case Phase.SWITCHING:
                back = "back " if self.target == self.home else ""
                return f"Switching {back}to {name(self.target)}"
            case _:
                return answering_words(self.comparison, self.asked or [self.own])

    @property
    def ways_left(self) -> list[int]:
        """Where the engine of the window still has to go."""
        is_switching = self.phase is Phase.SWITCHING
        at = self.target if is_switching else self.at
        ways = [at] if is_switching else []
        if self.is_in_turn and at == self.own and self.comparison.has_todo(self._other):
            at = self._other
            ways.append(at)
        return ways if self.stays or at == self.home else [*ways, self.home]

    @property
    def _other(self) -> int:
        return RIGHT if self.own == LEFT else LEFT


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
