"""Which drafts stand, and what comes after them.

Sample and match, for greedy and seeded requests, and for drafts without probabilities: every row is
sampled as it would be without drafts; a draft stands if it is what was sampled. So every token is a
sample of the model on its true prefix, and penalties, filters and seeds are right by construction.

Rejection sampling, for drafts drawn from q at random: see engine/speculation/rejection.py. The
result is distributed as p as well, and more drafts stand: the sum of min(p, q). p and q are what is
left after all processors.

Both emit the drafts that stand and one token more. Both are launched whole; all that a step drew,
with its log probabilities, is read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.sampler import Drawn, RowLogprobs, Sampler, SamplingRow
from engine.sampling.rows import merged, select
from engine.speculation.proposer import Proposal
from engine.speculation.rejection import Drafted, reject
from engine.transfer import DeviceTimer


class Verified(NamedTuple):
    """What a request's rows gave: the drafts that stand and one token more, each with its log
    probabilities if they were asked for. No token where the logits of the first row were bad."""

    token_ids: list[int]
    logprobs: list[RowLogprobs | None]


class Verification:
    """A step's rows that were launched: `read` gives what every request gets of it.

    drawn: a token for each row; None where there are no rows. Where drafts are rejection sampled,
    its tokens are what comes out already.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Tensor,
        rows: Sequence[Sequence[SamplingRow]],
        proposals: Sequence[Proposal],
        unread: Tensor | None = None,
    ) -> None:
        self._lengths = [len(own) for own in rows]
        self._proposals = proposals
        self.drawn: Drawn | None = None
        if any(proposal.probabilities for proposal in proposals):
            assert unread is None, "drafts follow from tokens that were read"
            self.drawn = _launch(sampler, logits, rows, proposals)
        elif rows:
            self.drawn = sampler.launch(logits, _flat(rows), unread)

    def read(self) -> list[Verified]:
        """What came out, request by request; waits until the device has drawn it."""
        if self.drawn is None:
            return []
        token_ids, logprobs, _ = self.drawn.read()
        result = []
        start = 0
        for length, proposal in zip(self._lengths, self._proposals, strict=True):
            own = token_ids[start : start + length]
            kept = match(own, proposal.token_ids)
            result.append(Verified(own[:kept], logprobs[start : start + kept]))
            start += length
        return result

    @property
    def device_s(self) -> float | None:
        """Seconds that the device sampled, once it was read; None on the CPU."""
        return None if self.drawn is None else self.drawn.device_s


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
    (-1) does not count; the step that samples it first fails. (Nor does one behind the end of what
    rejection sampling gave, where rounding let a draft be replaced by itself.)"""
    for i, token_id in enumerate(sampled):
        if token_id < 0:
            return i
        if i == len(drafts) or token_id != drafts[i]:
            return i + 1
    return len(sampled)


@torch.inference_mode()
def _launch(
    sampler: Sampler,
    logits: Tensor,
    rows: Sequence[Sequence[SamplingRow]],
    proposals: Sequence[Proposal],
) -> Drawn:
    """Some of the requests by rejection sampling, the others' rows sampled to be matched."""
    timer = DeviceTimer(logits.device)
    timer.mark()
    drafted: list[Drafted] = []
    matched: list[int] = []
    count = 0
    for own, proposal in zip(rows, proposals, strict=True):
        places = range(count, count + len(own))
        if proposal.probabilities:
            drafted.append(Drafted(places, own, proposal))
        else:
            matched += places
        count += len(own)
    every = _flat(rows)
    parts = reject(sampler, logits, drafted)
    if matched:
        drawn = sampler.draw(select(logits, matched), [every[place] for place in matched])
        parts.append((matched, drawn))
    return sampler.report(logits, every, merged(parts, count, logits.device), timer)


def _flat(rows: Sequence[Sequence[SamplingRow]]) -> list[SamplingRow]:
    return [row for own in rows for row in own]
