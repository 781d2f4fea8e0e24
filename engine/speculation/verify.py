"""Verifies drafts: which are accepted, and which token comes after them.

Sample and match, for greedy and seeded requests, and for drafts without probabilities: every row is
sampled as it would be without drafts; a draft is accepted if it equals the sampled token. So every
token is a sample of the model on its true prefix, and penalties, filters and seeds are right by
construction.

Rejection sampling, for drafts drawn from q at random: see `reject`. The result is distributed as p
too, and more drafts are accepted: the sum of min(p, q). p and q are the distributions after all
logits processors.

Both return the accepted drafts and one token more. Both are launched without waiting; all tokens of
a step and their log probabilities are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch.transfer import DeviceTimer, upload
from engine.sampling.draw import RowLogprobs, block_masses, inverse_cdf, merged, select, uniforms
from engine.sampling.sampler import Drawn, Sampler, SamplingRow
from engine.speculation.proposer import Proposal

# Random numbers beside the one with which a position is drawn.
_ACCEPT, _RESIDUAL = 0x5DEECE66D, 0x2545F4914F6CDD1D


class Drafted(NamedTuple):
    """A request with randomly drawn drafts. places: indices of its rows in the step's logits,
    adjacent, one more than drafts. rows: before each draft and after the last."""

    places: Sequence[int]
    rows: Sequence[SamplingRow]
    proposal: Proposal


class Numbers(NamedTuple):
    """Random numbers in [0, 1) for the rows of some requests, float64 [R]. accept: the row's draft
    is accepted if this times q is less than p; unused in a request's last row. draw: for drawing
    the row's token, if it is drawn."""

    accept: NDArray[np.float64]
    draw: NDArray[np.float64]


def keyed(drafted: Sequence[Drafted]) -> Numbers:
    """Numbers keyed by the rows' seeds and positions. A token without a rejected draft is drawn
    with the same number as without drafts."""
    accepts, draws, positions = [], [], []
    for *before, last in (request.rows for request in drafted):
        accepts += [row.seed ^ _ACCEPT for row in (*before, last)]
        draws += [*(row.seed ^ _RESIDUAL for row in before), last.seed]
        positions += [row.position for row in (*before, last)]
    return Numbers(uniforms(accepts, positions), uniforms(draws, positions))


@torch.inference_mode()
def reject(
    sampler: Sampler,
    logits: Tensor,
    drafted: Sequence[Drafted],
    numbers: Callable[[Sequence[Drafted]], Numbers] = keyed,
) -> list[tuple[list[int], Tensor]]:
    """What comes out of `drafted`, whose rows are among logits[R of the step, V], part by part: the
    places of some rows and int64 [len(places)], in each request the drafts that stand, one token
    more, and -1 behind it. The one token is -1 where the logits of its row were bad."""
    parts = []
    for chunk in _chunks(drafted, sampler.chunk_rows):
        places = [place for request in chunk for place in request.places]
        parts.append((places, _outcome(sampler, select(logits, places), chunk, numbers(chunk))))
    return parts


def _chunks(drafted: Sequence[Drafted], most_rows: int) -> Iterator[list[Drafted]]:
    """Whole requests with at most so many rows; more only where one alone has more."""
    chunk: list[Drafted] = []
    count = 0
    for request in drafted:
        if chunk and count + len(request.rows) > most_rows:
            yield chunk
            chunk, count = [], 0
        chunk.append(request)
        count += len(request.rows)
    if chunk:
        yield chunk


def _outcome(
    sampler: Sampler, logits: Tensor, drafted: Sequence[Drafted], numbers: Numbers
) -> Tensor:
    """int64 [R], for all rows of `drafted`, in their order."""
    device = logits.device
    at, ends = _places(drafted)
    drafts, q_rows, offsets, owners = upload(at, device)
    grid = upload(ends, device)
    accept, draw = upload(np.stack(numbers), device)

    p = sampler.weights(logits, [row for request in drafted for row in request.rows])
    q = torch.stack([row for request in drafted for row in request.proposal.probabilities])
    p_of = p.values.gather(1, drafts[:, None]) / p.totals
    stands = accept * q[q_rows, drafts].double() < p_of.squeeze(1).double()
    last = grid[:, -1]
    stands &= p.ok.squeeze(1)
    stands.index_fill_(0, last, False)

    num_standing = (~stands)[grid].int().argmax(1)  # the first row at which a request ends
    end = grid.gather(1, num_standing[:, None]).squeeze(1)
    p_end = p.values.index_select(0, end).div_(p.totals.index_select(0, end))
    q_end = q.index_select(0, q_rows[end]).masked_fill_((end == last)[:, None], 0.0)
    rest = residual(p_end, q_end)
    tokens = inverse_cdf(rest, block_masses(rest), draw[end])
    tokens = torch.where(p.ok.squeeze(1)[end], tokens, -1)
    return torch.where(offsets < num_standing[owners], drafts, -1).index_copy_(0, end, tokens)


def _places(drafted: Sequence[Drafted]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What belongs to each row, [4, R]: its draft (0 behind the last), the row of q that this was
    drawn from (0 there too), how many rows of its request come before it, and which request that
    is. And the rows of every request, [len(drafted), rows of the longest], its last repeated."""
    longest = max(len(request.rows) for request in drafted)
    rows: list[tuple[int, int, int, int]] = []
    grid = []
    num_drafts = 0
    for owner, request in enumerate(drafted):
        first, tokens = len(rows), request.proposal.token_ids
        rows += [(token, num_drafts + i, i, owner) for i, token in enumerate(tokens)]
        rows.append((0, 0, len(tokens), owner))
        num_drafts += len(tokens)
        grid.append([first + min(i, len(tokens)) for i in range(longest)])
    return np.array(rows, dtype=np.int64).T, np.array(grid, dtype=np.int64)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0) row by row of p[N, V] and q[N, V'], not normalized; p itself in rows in which
    rounding leaves nothing. What q lacks, where it is narrower, is 0."""
    width = min(p.shape[1], q.shape[1])
    rest = p.clone()
    rest[:, :width] -= q[:, :width]
    rest.clamp_(min=0.0)
    return torch.where(rest.amax(1, keepdim=True) > 0, rest, p)


class Verified(NamedTuple):
    """The result of a request's rows: the accepted drafts and one token more, each with its log
    probabilities if requested. Empty if the logits of the first row were bad."""

    token_ids: list[int]
    logprobs: list[RowLogprobs | None]


class Verification:
    """The launched verification of a step's rows; `read` returns the result of every request.

    drawn: a token for each row; None without rows. With rejection sampling these are the final
    tokens.
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
        """The result of every request; waits until the device has drawn it."""
        if self.drawn is None:
            return []
        token_ids, logprobs = self.drawn.read()
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
