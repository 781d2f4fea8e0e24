"""What the engine asks of something that drafts tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.scheduler import Grant


class Proposal(NamedTuple):
    """Tokens that may come next, at most as many as the grant has places for.

    probabilities[len(token_ids), V]: float32, what each token was drawn from, where it was drawn at
    random and independently of the model that verifies it; V is the draft's vocabulary, of which
    the first entries are the model's. None where the drafts are certain, or are drawn with the
    random numbers with which the model will draw.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: Tensor | None = None


NOTHING = Proposal()


class Proposer(Protocol):
    """Drafts for requests that decode. Its choices decide speed alone, never tokens."""

    @property
    def weights_bytes(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...

    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        """A proposal for every grant (all of them have places). `budget`: most tokens to compute
        on top of one per draft, for what a draft model has to catch up with."""

    def forget(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""
