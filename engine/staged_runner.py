"""Runs a model whose layers are on several GPUs, one behind the other.

    cuda:0   | piece 0 | piece 1 | piece 2 |
    cuda:1             | piece 0 | piece 1 | piece 2 |

A long prompt goes through in pieces, so that every GPU has one. (GPipe, Huang et al. 2019, does so
in training; llama.cpp calls a piece a physical batch.) Few tokens are one piece: their steps take
as long as reading the weights does, which every piece would have to do again.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import Tensor, nn

from engine.attention.interface import active
from engine.attention.staged import StagedAttention
from engine.batch import Batch
from engine.devices import make_current
from engine.graphs import put_drawn
from engine.model_runner import ModelRunner, forward

LEAST_PIECE = 256
"""Tokens: products with fewer rows are limited by reading the weights on most GPUs."""
_PIECES_PER_STAGE = 2


class StagedRunner(ModelRunner):
    """Steps are launched operation by operation, by one thread. backend: a StagedAttention."""

    def __init__(self, model: nn.Module, backend: StagedAttention) -> None:
        self._devices = list(backend.parts)
        super().__init__(model, backend, self._devices[0])

    def capture(self, *args: object, **options: object) -> None:
        """Captures nothing."""

    @torch.inference_mode()
    def execute_eagerly(self, batch: Batch, drawn: Tensor | None = None) -> Tensor:
        cache = self.backend
        assert isinstance(cache, StagedAttention), "dropped"
        most = _PIECES_PER_STAGE * len(self._devices)
        count = 1 if drawn is not None else min(most, batch.num_tokens // LEAST_PIECE)
        found = []
        try:
            for piece in in_pieces(batch, max(1, count)):
                cache.begin_step(piece)
                first = cache.first_batch
                if drawn is not None:
                    put_drawn(first, drawn)
                make_current(self._devices[0])
                with active(cache):
                    rows = cache.last_batch.logits_indices
                    found.append(forward(self.model, first.input_ids, first.positions, rows))
        finally:
            make_current(self._devices[0])
        logits = torch.cat(found) if len(found) > 1 else found[0]
        return logits.to(self.device, non_blocking=True)


def in_pieces(batch: Batch, count: int) -> list[Batch]:
    """The tokens of a batch, which is on the host, in `count` batches of nearly as many each, to be
    computed in this order: a later piece of a request attends over the earlier one."""
    if count == 1:
        return [batch]
    bounds = [batch.num_tokens * piece // count for piece in range(count + 1)]
    return [_piece(batch, start, end) for start, end in itertools.pairwise(bounds)]


def _piece(batch: Batch, start: int, end: int) -> Batch:
    offsets, seq_lens, tables = [0], [], []
    for request in range(batch.num_requests):
        first, last = batch.query_start_loc[request], batch.query_start_loc[request + 1]
        low, high = max(first, start), min(last, end)
        if low >= high:
            continue
        offsets.append(offsets[-1] + high - low)
        length = batch.seq_lens[request] - (last - high)
        seq_lens.append(length)
        tables.append(batch.block_tables[request][: -(-length // batch.block_size)])
    rows = batch.logits_indices
    return dataclasses.replace(
        batch,
        input_ids=batch.input_ids[start:end],
        positions=batch.positions[start:end],
        slot_mapping=batch.slot_mapping[start:end],
        logits_indices=rows[(rows >= start) & (rows < end)] - start,
        query_start_loc=offsets,
        seq_lens=seq_lens,
        block_tables=tables,
    )
