"""What the engine asks of something that drafts tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from engine.config import EngineConfig
from engine.graphs import DecodeGraphs, Taps
from engine.step_plan import Grant, Outcome, StepPlan


class Proposal(NamedTuple):
    """Tokens that may come next, at most as many as the grant has places for.

    probabilities: for each token what it was drawn from, float32 [V], where it was drawn at random
    and independently of the model that verifies it; V is the draft's vocabulary, the same for all
    requests of a step, of which the first entries are the model's. Empty where the drafts are
    certain, or are drawn with the random numbers with which the model will draw.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[Tensor, ...] = ()


NOTHING = Proposal()


class Proposer(ABC):
    """Drafts for requests that decode. Its choices decide speed alone, never tokens.

    `taps`: to listen to the model's pass of every step, for one that reads what the model computes
    there.
    """

    weights_bytes: int = 0
    taps: Taps | None = None

    @property
    def cache_bytes(self) -> int:
        return 0

    @property
    def graphs(self) -> DecodeGraphs | None:
        """What was captured of a draft model's steps."""
        return None

    @abstractmethod
    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        """A proposal for every grant (all of them have places). `budget`: most tokens to compute
        on top of one per draft, for what a draft model has to catch up with."""

    def follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:  # noqa: B027
        """What came of a step, before it is committed; not called while nothing is drafted."""

    def update(self, config: EngineConfig) -> None:  # noqa: B027
        """Live settings have changed."""

    def forget(self, request_id: str) -> None:  # noqa: B027
        """The request has ended; unknown ids are ignored."""

    def capture(self, max_num_seqs: int, num_blocks: int) -> None:  # noqa: B027
        """Capture the steps of a draft model for up to so many requests, of at most `num_blocks`
        blocks each, on a device that can."""

    def release_graphs(self) -> None:  # noqa: B027
        """Give the memory of what was captured back."""

    def drop(self) -> None:  # noqa: B027
        """Let go of a draft model's cache and of what was captured; nothing is proposed any
        more."""
