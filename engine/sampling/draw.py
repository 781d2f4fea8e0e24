"""Draws a token per row: the largest logit, or the inverse distribution function at u. Also its log
probability, rank and alternatives.

Drawing selects a block first (see `BLOCK`), then a token inside it. Log probabilities describe the
model: log_softmax of the raw logits, before temperature, penalties and filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch.transfer import upload_places
from engine.sampling import BLOCK


class RowMaxima(NamedTuple):
    values: Tensor  # float32 [R]; NaN where the row has a NaN
    token_ids: Tensor  # int64 [R]; the lowest index at ties


def row_maxima(logits: Tensor) -> RowMaxima:
    """The largest logit of every row of `logits` [R, V] (any V), and its index."""
    num_blocks, vocab_size = logits.shape[1] // BLOCK, logits.shape[1]
    whole = logits[:, : num_blocks * BLOCK].unflatten(1, (num_blocks, BLOCK))
    blocks = [whole.amax(2)] if num_blocks else []
    if num_blocks * BLOCK < vocab_size:
        blocks.append(logits[:, num_blocks * BLOCK :].amax(1, keepdim=True))
    # argmax gives the first of equals, and takes NaN for the largest
    block = torch.cat(blocks, dim=1).argmax(1, keepdim=True)
    columns = block * BLOCK + torch.arange(BLOCK, device=logits.device)
    columns.clamp_(max=vocab_size - 1)  # repeats of the last column cannot come first
    values = logits.gather(1, columns)
    inside = values.argmax(1, keepdim=True)
    return RowMaxima(
        values.gather(1, inside).squeeze(1).float(), columns.gather(1, inside).squeeze(1)
    )


def block_masses(probs: Tensor) -> Tensor:
    """Sums of the blocks of `probs` [R, padded_vocab], as float64 [R, blocks].

    A block is summed in float32 (pairwise, so no less exact than the float32 probabilities are);
    what adds up over the vocabulary is float64.
    """
    return probs.unflatten(1, (-1, BLOCK)).sum(2).double()


def inverse_cdf(probs: Tensor, masses: Tensor, u: Tensor) -> Tensor:
    """The first token, in vocabulary order, at which the running sum exceeds u * total.

    probs: [R, padded_vocab], not normalized, each row with some mass; masses: its `block_masses`;
    u: float64 [R] in [0, 1). Returns int64 [R]. A token without mass is never returned.
    """
    ends = masses.cumsum(1)
    total = ends[:, -1:]
    # u * total may round up to the total itself, which no running sum exceeds
    target = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    block = (ends > target).int().argmax(1, keepdim=True)
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    columns = block * BLOCK + torch.arange(BLOCK, device=probs.device)
    inside = probs.gather(1, columns).double()
    hits = start + inside.cumsum(1) > target
    # Here the block is summed in another order and precision, and may fall short of the target by
    # a rounding: then it is the block's last token with mass.
    last = BLOCK - 1 - (inside > 0).int().flip(1).argmax(1, keepdim=True)
    offset = torch.where(hits.any(1, keepdim=True), hits.int().argmax(1, keepdim=True), last)
    return columns.gather(1, offset).squeeze(1)


def select(x: Tensor, rows: Sequence[int]) -> Tensor:
    """The given rows of `x`, ascending; a view if they are adjacent."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return x[rows[0] : rows[-1] + 1]
    return x[upload_places(rows, x.device)]


def merged(parts: Sequence[tuple[list[int], Tensor]], count: int, device: torch.device) -> Tensor:
    """int64 [count] from the values at some of the places; every place is in one of the parts, and
    those of a part are ascending."""
    if len(parts) == 1:
        return parts[0][1]
    result = torch.empty(count, dtype=torch.int64, device=device)
    for places, values in parts:
        result.index_copy_(0, upload_places(places, device), values)
    return result


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), with 53 random bits. Seeds: any integers, taken
    modulo 2**64."""
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    position = np.array([p & _MASK for p in positions], dtype=np.uint64)
    bits = _mix(_mix(seed + _GAMMA) + (position + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


class RowLogprobs(NamedTuple):
    """The log probability of a row's token. `rank`: 1 plus the number of more probable tokens.
    `alternatives`: (token id, log probability), most probable first, the lower id at ties."""

    token_id: int
    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float], ...] = ()


class PendingLogprobs(NamedTuple):
    """Log probabilities of some rows, on the device until `finish` gets their numbers.

    token_ids, chosen, ranks: [R]. tops: values and ids [rows, n] of the alternatives, for rows
    (indices into the R) with the same number n of them.
    """

    token_ids: Tensor
    chosen: Tensor
    ranks: Tensor
    tops: list[tuple[list[int], Tensor, Tensor]]

    @property
    def tensors(self) -> list[Tensor]:
        tops = [tensor for _, values, ids in self.tops for tensor in (values, ids)]
        return [self.token_ids, self.chosen, self.ranks, *tops]

    def finish(self, numbers: Iterator[list[Any]]) -> list[RowLogprobs]:
        """One report per row, from the numbers of `tensors`."""
        token_ids, chosen, ranks = next(numbers), next(numbers), next(numbers)
        tops: list[tuple[tuple[int, float], ...]] = [()] * len(token_ids)
        for rows, _, _ in self.tops:
            values, ids = next(numbers), next(numbers)
            for row, row_ids, row_values in zip(rows, ids, values, strict=True):
                pairs = zip(row_ids, row_values, strict=True)
                tops[row] = tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
        return [RowLogprobs(*report) for report in zip(token_ids, chosen, ranks, tops, strict=True)]


def row_logprobs(
    work: Tensor, logprobs: Tensor, token_ids: Tensor, num_alternatives: Sequence[int]
) -> PendingLogprobs:
    """The log probabilities of token_ids[R] in `work`: raw logits, float32 [R, padded_vocab], which
    is overwritten; `logprobs` is scratch of that shape. num_alternatives may not exceed the
    vocabulary."""
    torch.log_softmax(work, dim=1, out=logprobs)
    chosen = logprobs.gather(1, token_ids[:, None])
    # Counted in float32: exact below 2**24, and several times faster than a mask of booleans.
    ranks = torch.gt(logprobs, chosen, out=work).sum(1).long() + 1
    return PendingLogprobs(token_ids, chosen.squeeze(1), ranks, _tops(logprobs, num_alternatives))


def _tops(logprobs: Tensor, sizes: Sequence[int]) -> list[tuple[list[int], Tensor, Tensor]]:
    tops = []
    # One topk per size asked for: a larger one for all could break ties in another way.
    for size in sorted(set(sizes) - {0}):
        rows = [i for i, n in enumerate(sizes) if n == size]
        own = (
            logprobs if len(rows) == len(sizes) else logprobs[upload_places(rows, logprobs.device)]
        )
        tops.append((rows, *own.topk(size, dim=1)))
    return tops
