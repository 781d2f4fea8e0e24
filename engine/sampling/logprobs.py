"""Log probabilities of the chosen tokens, their ranks, and the most probable alternatives.

They describe the model: log_softmax of the raw logits, before temperature, penalties and filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class RowLogprobs(NamedTuple):
    """`rank` is 1 plus the number of tokens that are more probable than the chosen one.
    `alternatives`: (token id, log probability), most probable first, the lower id at ties."""

    token_id: int
    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float], ...] = ()


def row_logprobs(
    work: Tensor, logprobs: Tensor, token_ids: Sequence[int], num_alternatives: Sequence[int]
) -> list[RowLogprobs]:
    """One report per row of `work`: raw logits, float32 [R, padded_vocab], used up; `logprobs` is
    scratch of that shape. The alternatives asked for may not be more than the vocabulary."""
    torch.log_softmax(work, dim=1, out=logprobs)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=work.device)[:, None])
    # Counted in float32: exact below 2**24, and several times faster than a mask of booleans.
    ranks = torch.gt(logprobs, chosen, out=work).sum(1).long() + 1
    tops = _tops(logprobs, num_alternatives)
    return [
        RowLogprobs(token_id, logprob, rank, top)
        for token_id, logprob, rank, top in zip(
            token_ids, chosen.squeeze(1).tolist(), ranks.tolist(), tops, strict=True
        )
    ]


def _tops(logprobs: Tensor, sizes: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(sizes)
    # One topk per size asked for: a larger one for all could break ties in another way.
    for size in sorted(set(sizes) - {0}):
        rows = [i for i, n in enumerate(sizes) if n == size]
        values, ids = logprobs[rows].topk(size, dim=1)
        for row, row_ids, row_values in zip(rows, ids.tolist(), values.tolist(), strict=True):
            pairs = zip(row_ids, row_values, strict=True)
            tops[row] = tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
    return tops
