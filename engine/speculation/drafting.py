"""A request while it is drafted for, and the drawing of its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine.request import Request
from engine.sampler import Sampler, SamplingRow, row_of
from engine.sampling.rows import select
from engine.speculation.proposer import NOTHING, Proposal


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
