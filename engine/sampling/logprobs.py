"""Log probabilities of the chosen tokens, their ranks, and the most probable alternatives.

They describe the model: log_softmax of the raw logits, before temperature, penalties and filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.batch.transfer import upload_places


class RowLogprobs(NamedTuple):
    """`rank` is 1 plus the number of tokens that are more probable than the chosen one.
    `alternatives`: (token id, log probability), most probable first, the lower id at ties."""

    token_id: int
    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float], ...] = ()


class PendingLogprobs(NamedTuple):
    """Of some rows, on the device until `finish` gets their numbers.

    token_ids, chosen, ranks: [R]. tops: for the rows (counted among the R) that ask for equally
    many alternatives, their values and ids [rows, n].
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
    """Of token_ids[R] in every row of `work`: raw logits, float32 [R, padded_vocab], used up;
    `logprobs` is scratch of that shape. The alternatives asked for may not be more than the
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
