"""The end of a row: the largest logit, or the inverse of the distribution function at u.

Both look for a block first (see `BLOCK`), then inside it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.sampling import BLOCK


class RowMaxima(NamedTuple):
    values: Tensor  # float32 [R]; NaN where the row has a NaN
    token_ids: Tensor  # int64 [R]; the lowest index at ties


def row_maxima(logits: Tensor) -> RowMaxima:
    """Largest logit of every row of `logits` [R, V] (any V), and where it is."""
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
