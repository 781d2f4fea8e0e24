"""The interface of draft methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.interface import LayerSpec
from engine.config import EngineConfig
from engine.runner.cuda_graphs import Taps
from engine.runner.model_runner import ModelRunner
from engine.sampling.draw import select
from engine.sampling.sampler import Sampler, SamplingRow, row_of
from engine.scheduling.request import Grant, Outcome, Request, StepPlan


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


@dataclass(frozen=True)
class Draft:
    """A loaded draft model, or an EAGLE-3 head with its `taps` on the large model. `vocab_size`:
    ids that it shares with that model; `max_model_len`: its own context, in tokens."""

    name: str
    model: nn.Module
    dtype: torch.dtype
    weights_bytes: int
    layers: dict[int, LayerSpec]
    vocab_size: int
    max_model_len: int
    taps: Taps | None = None


class Proposer(ABC):
    """Drafts for requests that decode. Its choices decide speed alone, never tokens.

    `taps`: to listen to the model's pass of every step, for one that reads what the model computes
    there.
    """

    weights_bytes: int = 0
    cache_bytes: int = 0
    taps: Taps | None = None
    runner: ModelRunner | None = None
    """Of a draft model."""

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


@dataclass(slots=True)
class Drafting:
    """A request that is drafted for: what it has so far. `places`: most drafts that it may get."""

    request: Request
    places: int
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Tensor] = field(default_factory=list)

    @property
    def row(self) -> SamplingRow:
        return row_of(self.request, self.tokens)

    def take(self, token_id: int) -> bool:
        """Add a draft; False where no other makes sense after it."""
        if token_id < 0:  # NaN logits of the draft are no reason to stop the request
            return False
        self.tokens.append(token_id)
        if token_id in self.request.eos_token_ids and not self.request.params.ignore_eos:
            return False
        return len(self.tokens) < self.places

    @property
    def proposal(self) -> Proposal:
        if not self.tokens:
            return NOTHING
        return Proposal(tuple(self.tokens), tuple(self.probabilities))


def draw(sampler: Sampler, logits: Tensor, drafting: Sequence[Drafting]) -> list[int]:
    """A token for each request from logits[len(drafting), V], -1 where they were bad; its
    distribution is kept where it is drawn at random and will be verified by rejection sampling.
    The caller hands the tokens to `take`."""
    rows = [item.row for item in drafting]
    drawn = [-1] * len(rows)
    random = [i for i, row in enumerate(rows) if row.is_rejection_sampled]
    others = [i for i, row in enumerate(rows) if not row.is_rejection_sampled]
    if random:
        found = sampler.draw_from(select(logits, random), [rows[i] for i in random])
        for i, token_id, probabilities in zip(random, *found, strict=True):
            drawn[i] = token_id
            if token_id >= 0:
                drafting[i].probabilities.append(probabilities)
    if others:
        sampled = sampler.sample(select(logits, others), [rows[i] for i in others])
        for i, token_id in zip(others, sampled.token_ids, strict=True):
            drawn[i] = token_id
    return drawn
