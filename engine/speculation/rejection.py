"""Rejection sampling of drafts (Leviathan et al. 2023; Chen et al. 2023): all requests together.

A draft d that was drawn from q stands with probability min(1, p(d) / q(d)); the first that does not
is replaced by a sample of max(p - q, 0); if all stand, one more token comes from p. So what comes
out is distributed as p. Of one request, whose second draft does not stand:

    row          | 0         1         2         3
    draft        | d1        d2        d3        -        u * q(d) < p(d) ?  yes  no   yes  -
    comes out    | d1        t         -1        -1       t from max(p - q, 0) of row 1

Everything is decided on the device, and nothing here waits for it. As many whole requests are
worked on at once as have no more rows than the sampler takes (one alone may have more): besides its
buffers that needs a copy of their q, and some rows of the vocabulary per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampler import Sampler, SamplingRow
from engine.sampling.draw import block_masses, inverse_cdf
from engine.sampling.rows import select
from engine.sampling.uniform import uniforms
from engine.speculation.proposer import Proposal
from engine.transfer import upload

# Random numbers beside the one with which a position is drawn.
_ACCEPT, _RESIDUAL = 0x5DEECE66D, 0x2545F4914F6CDD1D


class Drafted(NamedTuple):
    """A request with drafts that were drawn at random. places: of its rows among the step's logits,
    neighbours, one more than drafts. rows: before each draft and after the last."""

    places: Sequence[int]
    rows: Sequence[SamplingRow]
    proposal: Proposal


class Numbers(NamedTuple):
    """The random numbers in [0, 1) of some requests' rows, float64 [R]. accept: the row's draft
    stands if this times q is less than p; not looked at in a request's last row. draw: what the
    row's token is drawn with, where it is the one that is drawn."""

    accept: NDArray[np.float64]
    draw: NDArray[np.float64]


def keyed(drafted: Sequence[Drafted]) -> Numbers:
    """Numbers keyed by the rows' seeds and positions. A token that no draft was refused for is
    drawn with the number with which it would be drawn without drafts."""
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
