"""What two sides answered to the same prompts, and where they part. No Qt.

A side is a model in a precision, with its settings and its sampling.

    tokens    0 1 2 3 4 | 5 6 7          4 | 5: the first difference
    left      . . . . . | a b c
    right     . . . . . | x y            5 of 8 tokens of the left side are identical
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

from engine.evaluate.task import PromptLine

LEFT, RIGHT = 0, 1
HOME = 2
"""Beside LEFT and RIGHT: the engine of the window as it was found."""
GREEDY = "greedy"


class Piece(NamedTuple):
    """A token and its text."""

    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft_s`: arrival to first token. `tokens_per_s`: of decoding, after it; None for one token.
    `problem`: why there is no whole answer."""

    pieces: tuple[Piece, ...] = ()
    text: str = ""
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """What answers: its precision in words (behind the model where there are two), its settings,
    and what its weights take (None until it was loaded). `switch_s`: what loading it took, None
    where it was loaded already. `sampling`: its name."""

    precision: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights_bytes: int | None = None
    switch_s: float | None = None
    sampling: str = GREEDY

    @property
    def title(self) -> str:
        return self.precision if self.sampling == GREEDY else f"{self.precision} · {self.sampling}"


@dataclass(slots=True)
class Pair:
    """A prompt with the answers of both sides, as they come. `is_by_text`: two models with tokens
    of their own are compared by characters."""

    prompt: PromptLine
    answers: list[Answer | None] = field(default_factory=lambda: [None, None])
    is_by_text: bool = False

    @property
    def both(self) -> tuple[Answer, Answer] | None:
        """Both answers, where both are whole."""
        left, right = self.answers
        if left is None or right is None or left.problem or right.problem:
            return None
        return left, right

    @property
    def num_equal(self) -> int:
        """Tokens of the left answer before the first difference; 0 until both are there."""
        return self._place(LEFT)

    def _place(self, side: int) -> int:
        """The token of a side at which the answers part."""
        if self.both is None:
            return 0
        if not self.is_by_text:
            return num_equal(*self.both)
        left, right = self.both
        pairs = zip(left.text, right.text, strict=False)
        shorter = min(len(left.text), len(right.text))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        return num_within(self.both[side], same)

    @property
    def is_identical(self) -> bool:
        both = self.both
        if both is None:
            return False
        if self.is_by_text:
            return both[LEFT].text == both[RIGHT].text
        return ids(both[LEFT]) == ids(both[RIGHT])

    @property
    def equal_share(self) -> float | None:
        """Of the tokens of the left answer, those before the first difference."""
        if self.both is None:
            return None
        if self.is_identical:
            return 1.0
        return self.num_equal / max(1, len(self.both[0].pieces))

    def parts(self, side: int) -> tuple[str, str, str]:
        """An answer as (identical beginning, first different token, what follows)."""
        answer = self.answers[side]
        if answer is None:
            return "", "", ""
        if self.both is None or self.is_identical:
            return answer.text, "", ""
        return cut(answer, self._place(side))


@dataclass(slots=True)
class Comparison:
    """`started`: UTC, ISO 8601. `way`: how both sides got an engine, in words."""

    model: str
    started: str
    sides: list[Side]
    pairs: list[Pair] = field(default_factory=list)
    way: str = ""

    def name_of(self, side: int) -> str:
        """What answers on a side; of HOME, the model of the window."""
        return f"{self.model} as it was" if side == HOME else self.sides[side].precision

    def has_todo(self, side: int) -> bool:
        return any(pair.answers[side] is None for pair in self.pairs)

    @property
    def done(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.both is not None]

    @property
    def identical_share(self) -> float | None:
        """Of the prompts that both answered; None where there are none."""
        return fmean(pair.is_identical for pair in self.done) if self.done else None

    @property
    def mean_equal_share(self) -> float | None:
        shares = [pair.equal_share for pair in self.done if pair.equal_share is not None]
        return fmean(shares) if shares else None

    def mean_rate(self, side: int) -> float | None:
        """Tokens per second of decoding, the mean over the answers of a side."""
        rates = [a.tokens_per_s for p in self.pairs if (a := p.answers[side]) and a.tokens_per_s]
        return fmean(rates) if rates else None

    def mean_ttft_s(self, side: int) -> float | None:
        times = [a.ttft_s for p in self.pairs if (a := p.answers[side]) and a.ttft_s is not None]
        return fmean(times) if times else None


def ids(answer: Answer) -> list[int]:
    return [piece.token_id for piece in answer.pieces]


def num_equal(first: Answer, second: Answer) -> int:
    """Tokens before the first difference."""
    pairs = zip(ids(first), ids(second), strict=False)
    shorter = min(len(first.pieces), len(second.pieces))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def num_within(answer: Answer, length: int) -> int:
    """Tokens that lie in the first `length` characters."""
    ends = accumulate(len(piece.text) for piece in answer.pieces)
    return sum(end <= length for end in ends)


def cut(answer: Answer, place: int) -> tuple[str, str, str]:
    """The text before token `place`, that of the token, and that after it."""
    before = "".join(piece.text for piece in answer.pieces[:place])
    token = answer.pieces[place].text if place < len(answer.pieces) else ""
    if not answer.text.startswith(before):  # characters of several tokens
        before = answer.text[: len(before)]
    rest = answer.text[len(before) :]
    token = token if rest.startswith(token) else rest[:1]
    return before, token, rest[len(token) :]


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
