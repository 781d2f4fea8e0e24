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
    """Draft tokens, at most as many as the grant has room for.

    probabilities: for each token the distribution from which it was drawn, float32 [V], if it was
    drawn at random and independently of the verifying model. V is the draft's vocabulary, the same
    for all requests of a step; its first entries are the target model's. Empty where drafts are
    deterministic, or drawn with the same random numbers as the target model's tokens.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[Tensor, ...] = ()


NOTHING = Proposal()


@dataclass(frozen=True)
class Draft:
    """A loaded draft model, or an EAGLE-3 head with its `taps` on the target model. `vocab_size`:
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
    """Proposes drafts for decoding requests. Drafts affect speed only, never tokens.

    `taps`: active during the target model's pass of every step, for proposers that read its hidden
    states.
    """

    weights_bytes: int = 0
    cache_bytes: int = 0
    taps: Taps | None = None
    runner: ModelRunner | None = None
    """Of a draft model."""

    @property
    def resident_cache(self) -> int | None:
        """Of `cache_bytes`, those that take memory; None where the system does not tell."""
        return 0

    @abstractmethod
    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        """A proposal for every grant (all of them have room for drafts). `budget`: maximum number
        of tokens to compute on top of one per draft, for a draft model that has to catch up."""

    def follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:  # noqa: B027
        """Process the results of a step before it is committed; not called while nothing is
        drafted."""

    def update(self, config: EngineConfig) -> None:  # noqa: B027
        """Apply live settings."""

    def forget(self, request_id: str) -> None:  # noqa: B027
        """Drop the state of a request that has ended; unknown ids are ignored."""


@dataclass(slots=True)
class Drafting:
    """The state of a request while it is drafted for. `places`: maximum number of drafts."""

    request: Request
    places: int
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Tensor] = field(default_factory=list)

    @property
    def row(self) -> SamplingRow:
        return row_of(self.request, self.tokens)

    def take(self, token_id: int) -> bool:
        """Add a draft; False if no other can follow it."""
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
