"""Which drafts stand, and what comes after them.

Sample and match, for greedy and seeded requests, and for drafts without probabilities: every row is
sampled as it would be without drafts; a draft stands if it is what was sampled. So every token is a
sample of the model on its true prefix, and penalties, filters and seeds are right by construction.

Rejection sampling (Leviathan et al. 2023; Chen et al. 2023), for drafts drawn from q at random: a
draft d stands with probability min(1, p(d) / q(d)); the first that does not is replaced by a sample
of max(p - q, 0); if all stand, one more comes from p. The result is distributed as p, and more
drafts stand: the sum of min(p, q). p and q are what is left after all processors.

Both emit the drafts that stand and one token more.

Sample and match is launched whole and read once. Rejection sampling is decided on the host, draft
after draft, from a few numbers of each row; it waits for the device twice a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.sampler import Drawn, RowLogprobs, Sampler, SamplingRow
from engine.sampling.draw import block_masses, inverse_cdf
from engine.sampling.uniform import uniforms
from engine.speculation.proposer import Proposal
from engine.transfer import upload, upload_places

# Random numbers beside the one with which a position is drawn.
_ACCEPT, _RESIDUAL = 0x5DEECE66D, 0x2545F4914F6CDD1D


class Verified(NamedTuple):
    """What a request's rows gave: the drafts that stand and one token more, each with its log
    probabilities if they were asked for. No token where the logits of the first row were bad."""

    token_ids: list[int]
    logprobs: list[RowLogprobs | None]


class Verification:
    """A step's rows that were launched: `read` gives what every request gets of it.

    drawn: the rows that are sampled and matched; None where there are none.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Tensor,
        rows: Sequence[Sequence[SamplingRow]],
        proposals: Sequence[Proposal],
        unread: Tensor | None = None,
    ) -> None:
        self._sampler = sampler
        self._rows = rows
        self._proposals = proposals
        starts = [0]
        for own in rows:
            starts.append(starts[-1] + len(own))
        by_rejection = [i for i, p in enumerate(proposals) if p.probabilities is not None]
        self._matched = [i for i, p in enumerate(proposals) if p.probabilities is None]
        self._to_reject = {i: logits[starts[i] : starts[i + 1]] for i in by_rejection}
        self.drawn: Drawn | None = None
        if self._matched:
            chosen = logits
            if by_rejection:
                places = [j for i in self._matched for j in range(starts[i], starts[i + 1])]
                chosen = logits[upload_places(places, logits.device)]
            sampled = [row for i in self._matched for row in rows[i]]
            self.drawn = sampler.launch(chosen, sampled, unread)

    @torch.inference_mode()
    def read(self) -> list[Verified]:
        """What came out, request by request; waits until the device has drawn it."""
        result = {
            i: reject(self._sampler, logits, self._rows[i], self._proposals[i])
            for i, logits in self._to_reject.items()
        }
        if self.drawn is not None:
            sampled = self.drawn.read()
            place = 0
            for i in self._matched:
                end = place + len(self._rows[i])
                kept = match(sampled.token_ids[place:end], self._proposals[i].token_ids)
                result[i] = Verified(
                    sampled.token_ids[place : place + kept], sampled.logprobs[place : place + kept]
                )
                place = end
        return [result[i] for i in range(len(self._rows))]

    @property
    def device_s(self) -> float | None:
        """Seconds that the device sampled, once it was read; None on the CPU."""
        return None if self.drawn is None else self.drawn.device_s


@torch.inference_mode()
def verify(
    sampler: Sampler,
    logits: Tensor,
    rows: Sequence[Sequence[SamplingRow]],
    proposals: Sequence[Proposal],
) -> list[Verified]:
    """Verify a proposal per request, from logits[sum of len(rows[i]), V]: row 0 of a request comes
    before its drafts, row j after the j-th of them."""
    return Verification(sampler, logits, rows, proposals).read()


def match(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """How many of the sampled tokens count: through the first that is not its draft. A failed row
    (-1) does not count; the step that samples it first fails."""
    for i, token_id in enumerate(sampled):
        if token_id < 0:
            return i
        if i == len(drafts) or token_id != drafts[i]:
            return i + 1
    return len(sampled)


class Chance:
    """The random decisions of rejection sampling, keyed by the row's seed and position. (A test
    that walks through all of them replaces it.)"""

    def accepts(self, p: float, q: float, row: SamplingRow) -> bool:
        """True with probability min(1, p / q)."""
        return float(uniforms([row.seed ^ _ACCEPT], [row.position])[0]) * q < p

    def draw(self, weights: Tensor, row: SamplingRow, *, is_replacement: bool) -> int:
        """A token drawn from weights[V], not normalized."""
        seed = row.seed ^ _RESIDUAL if is_replacement else row.seed
        u = upload(uniforms([seed], [row.position]), weights.device)
        masses = block_masses(weights.unsqueeze(0))
        return int(inverse_cdf(weights.unsqueeze(0), masses, u))


KEYED = Chance()


def reject(
    sampler: Sampler,
    logits: Tensor,
    rows: Sequence[SamplingRow],
    proposal: Proposal,
    chance: Chance = KEYED,
) -> Verified:
    """Rejection sampling of one request's drafts from logits[len(drafts) + 1, V]."""
    assert proposal.probabilities is not None
    p = sampler.distributions(logits, rows)
    good, p_of, q_of = _at_drafts(p, proposal.probabilities, proposal.token_ids)
    token_ids: list[int] = []
    for i, row in enumerate(rows):
        if not good[i]:  # its logits were bad
            break
        if i == len(proposal.token_ids):
            token_ids.append(chance.draw(p[i], row, is_replacement=False))
            break
        if chance.accepts(p_of[i], q_of[i], row):
            token_ids.append(proposal.token_ids[i])
            continue
        rest = residual(p[i], proposal.probabilities[i])
        token_ids.append(chance.draw(rest, row, is_replacement=True))
        break
    kept = rows[: len(token_ids)]
    return Verified(token_ids, sampler.logprobs(logits[: len(kept)], kept, token_ids))


def _at_drafts(
    p: Tensor, q: Tensor, token_ids: Sequence[int]
) -> tuple[list[bool], list[float], list[float]]:
    """Of p[n + 1, V] and q[n, V']: which rows of p hold anything, and what both give the n drafts;
    one wait for the device."""
    drafts = upload_places(token_ids, p.device)[:, None]
    of_both = [p[: len(token_ids)].gather(1, drafts), q.gather(1, drafts)]
    columns = torch.cat([p.any(1, keepdim=True).float(), *of_both]).squeeze(1).tolist()
    count = len(p)
    good = [value > 0 for value in columns[:count]]
    return good, columns[count : count + len(token_ids)], columns[count + len(token_ids) :]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0), not normalized; p itself where rounding leaves nothing. q may be of another
    width; what it lacks is 0."""
    width = min(len(p), len(q))
    rest = p.clone()
    rest[:width] -= q[:width]
    rest.clamp_(min=0.0)
    return torch.where(rest.any(), rest, p)
