"""What a step computes of which request, and what came out of it: the words in which scheduler,
drafts, model and sampler speak of a step. Pure Python: no torch."""

from __future__ import annotations

from typing import NamedTuple

from engine.scheduling.request import Request
from engine.snapshot import FinishReason


class Grant(NamedTuple):
    """`num_tokens` tokens of `request`, from position `start`, are computed in this step.

    There is room, in the budget and in blocks, for `num_draft_places` drafts after them;
    `draft_token_ids` are those that were proposed, to be verified in this step. `is_resumed`: it is
    the first step after a preemption.
    """

    request: Request
    start: int
    num_tokens: int
    num_cached_tokens: int = 0  # skipped by a prefix hit at admission in this step
    num_draft_places: int = 0
    draft_token_ids: tuple[int, ...] = ()
    is_resumed: bool = False

    @property
    def end(self) -> int:
        """The position after the last one that is computed, drafts included."""
        return self.start + self.num_tokens + len(self.draft_token_ids)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last token, so that the next one can be sampled."""
        return self.start + self.num_tokens == self.request.num_tokens

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1 and self.start >= self.request.num_prompt_tokens


class StepPlan(NamedTuple):
    """`held_back` wait though there is a place for them: static batching lets nobody in."""

    grants: tuple[Grant, ...]
    preempted: tuple[Request, ...]
    held_back: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step, drafts included."""
        return sum(g.num_tokens + len(g.draft_token_ids) for g in self.grants)


class Outcome(NamedTuple):
    """What sampling gave a request: its new tokens, and why it ends if it does. All new tokens but
    the last are drafts that were accepted, and therefore computed already."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None

    @property
    def num_accepted(self) -> int:
        return max(0, len(self.token_ids) - 1)
