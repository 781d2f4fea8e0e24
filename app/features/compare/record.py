"""The replies of both sides to the same prompts, and their first difference. No Qt.

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
from typing import Any

from app.features.compare.replies import Reply
from engine.evaluate.task import PromptLine

LEFT, RIGHT = SIDES = (0, 1)
SIDE_NAMES = ("left", "right")
HOME = 2
"""The main engine as it was before, beside LEFT and RIGHT."""
GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its precision (after the model where the models differ), settings and weight size
    (None until loaded). `switch_s`: seconds to load it, None if it was loaded already. `sampling`:
    title of its preset. `path`, `load_format`: of its model; "" for the one that was loaded."""

    precision: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights_bytes: int | None = None
    switch_s: float | None = None
    sampling: str = GREEDY
    path: str = ""
    load_format: str = "auto"

    @property
    def title(self) -> str:
        return self.precision if self.sampling == GREEDY else f"{self.precision} · {self.sampling}"


@dataclass(slots=True)
class PromptReplies:
    """A prompt with both replies. `is_by_text`: replies of different tokenizers are compared by
    characters."""

    prompt: PromptLine
    replies: list[Reply | None] = field(default_factory=lambda: [None, None])
    is_by_text: bool = False

    @property
    def both(self) -> tuple[Reply, Reply] | None:
        """Both replies, where both are complete."""
        left, right = self.replies
        return (left, right) if left and right and left.is_done and right.is_done else None

    def has_ended(self, side: int) -> bool:
        reply = self.replies[side]
        return reply is not None and not reply.stage.is_open

    @property
    def num_equal(self) -> int:
        """Tokens of the left reply before the first difference; 0 until both are complete."""
        return self._place(LEFT)

    def _place(self, side: int) -> int:
        """Index of the first different token of a side."""
        if self.both is None:
            return 0
        if not self.is_by_text:
            return _num_common(*map(_ids, self.both))
        return _num_within(self.both[side], _num_common(*(reply.text for reply in self.both)))

    @property
    def is_identical(self) -> bool:
        if self.both is None:
            return False
        left, right = self.both
        return left.text == right.text if self.is_by_text else _ids(left) == _ids(right)

    @property
    def equal_share(self) -> float | None:
        """Share of the left reply's tokens that precede the first difference."""
        if self.both is None:
            return None
        return 1.0 if self.is_identical else self.num_equal / max(1, len(self.both[LEFT].tokens))

    def parts(self, side: int) -> tuple[str, str, str]:
        """A reply as (identical beginning, first different token, what follows)."""
        reply = self.replies[side]
        if reply is None or self.both is None or self.is_identical:
            return reply.text if reply is not None else "", "", ""
        place = self._place(side)
        before = "".join(token.text for token in reply.tokens[:place])
        token = reply.tokens[place].text if place < len(reply.tokens) else ""
        if not reply.text.startswith(before):  # characters of several tokens
            before = reply.text[: len(before)]
        rest = reply.text[len(before) :]
        token = token if rest.startswith(token) else rest[:1]
        return before, token, rest[len(token) :]


def _ids(reply: Reply) -> list[int]:
    return [token.token_id for token in reply.tokens]


def _num_common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Length of the common prefix."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _num_within(reply: Reply, length: int) -> int:
    """Number of tokens within the first `length` characters."""
    ends = accumulate(len(token.text) for token in reply.tokens)
    return sum(end <= length for end in ends)


@dataclass(slots=True)
class Comparison:
    """A comparison. `started`: UTC, ISO 8601. `placement`: where the sides ran, as text."""

    model: str
    started: str
    sides: list[Side]
    pairs: list[PromptReplies] = field(default_factory=list)
    placement: str = ""

    def name_of(self, side: int) -> str:
        """Title of a side; for HOME, of the main engine's model."""
        return f"{self.model} (original settings)" if side == HOME else self.sides[side].precision

    def has_todo(self, side: int) -> bool:
        return any(pair.replies[side] is None for pair in self.pairs)

    @property
    def done(self) -> list[PromptReplies]:
        return [pair for pair in self.pairs if pair.both is not None]

    @property
    def identical_share(self) -> float | None:
        """Share of prompts with identical replies, of those that both sides completed; None without
        any."""
        return fmean(pair.is_identical for pair in self.done) if self.done else None

    @property
    def mean_equal_share(self) -> float | None:
        shares = [pair.equal_share for pair in self.done if pair.equal_share is not None]
        return fmean(shares) if shares else None

    def mean_rate(self, side: int) -> float | None:
        """Decode tokens per second of a side, the mean over its replies."""
        rates = [r.tokens_per_s for r in self._ended(side) if r.tokens_per_s]
        return fmean(rates) if rates else None

    def mean_ttft_s(self, side: int) -> float | None:
        times = [r.ttft_s for r in self._ended(side) if r.ttft_s is not None]
        return fmean(times) if times else None

    def _ended(self, side: int) -> list[Reply]:
        replies = (pair.replies[side] for pair in self.pairs)
        return [reply for reply in replies if reply is not None and not reply.stage.is_open]


class Phase(Enum):
    IDLE = auto()
    WEIGHING = auto()  # whether the other side fits into memory beside this one
    LOADING = auto()  # a second engine
    ANSWERING = auto()
    SWITCHING = auto()  # the engine of the window
