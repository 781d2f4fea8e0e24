"""Pipeline parallelism: paged attention and steps of a model with layers on several GPUs.

Each layer's pages are on its GPU. Block ids and block tables are the same on all of them: scheduler
and block pool see one cache.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from engine.attention.gpu import GPUAttention
from engine.attention.interface import AttentionOptions, active
from engine.batch.batch import Batch
from engine.batch.transfer import Staging
from engine.hardware.devices import make_current
from engine.runner.cuda_graphs import put_drawn
from engine.runner.model_runner import ModelRunner, forward


class PipelineAttention:
    """The attention backends of all GPUs as one. parts: by device, in pipeline order."""

    def __init__(self, parts: Mapping[str, GPUAttention]) -> None:
        self.parts = dict(parts)
        self._of = {layer: part for part in parts.values() for layer in part.caches}
        self._stagings = {name: Staging(torch.device(name)) for name in parts}
        self._staged: list[Batch] = []
        first = next(iter(parts.values()))
        self.description = f"{first.description}; devices: {', '.join(parts)}"

    @property
    def _first(self) -> GPUAttention:
        return next(iter(self.parts.values()))

    @property
    def nbytes(self) -> int:
        """On the first GPU."""
        return self._first.nbytes

    @property
    def bytes_on(self) -> dict[str, int]:
        return {name: part.nbytes for name, part in self.parts.items()}

    @property
    def workspace_bytes(self) -> int:
        """What is taken on it beside the cache."""
        return self._first.workspace_bytes

    @property
    def first_batch(self) -> Batch:
        """The batch of the step, on the first GPU."""
        return self._staged[0]

    @property
    def last_batch(self) -> Batch:
        return self._staged[-1]

    def begin_step(self, batch: Batch) -> None:
        """`batch` is on the host."""
        self._staged = []
        for name, part in self.parts.items():
            make_current(name)
            self._staged.append(self._stagings[name].copy(batch))
            part.begin_step(self._staged[-1])

    def clear_blocks(self, blocks: list[int]) -> None:
        for part in self.parts.values():
            part.clear_blocks(blocks)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at the step's slots."""
        self._of[layer].write(layer, k, v)

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self._of[layer].forward(layer, q, k, v, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        """Attention over what is stored."""
        return self._of[layer].attend(layer, q, options)


LEAST_PIECE = 256
"""Tokens: products with fewer rows are limited by reading the weights on most GPUs."""
_PIECES_PER_STAGE = 2


class StagedRunner(ModelRunner):
    """Runs a step across the GPUs of a pipeline, launched kernel by kernel on one thread. backend:
    a PipelineAttention."""

    def __init__(self, model: nn.Module, backend: PipelineAttention) -> None:
        self._devices = list(backend.parts)
        super().__init__(model, backend, self._devices[0])

    def capture(self, *args: object, **options: object) -> None:
        """Captures nothing."""

    @torch.inference_mode()
    def execute_eagerly(self, batch: Batch, drawn: Tensor | None = None) -> Tensor:
        cache = self.backend
        assert isinstance(cache, PipelineAttention), "dropped"
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
