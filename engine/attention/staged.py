"""Paged attention of a model whose layers are on several GPUs: the pages of each layer lie there.

Blocks are the same everywhere, and so are the tables of requests: scheduler and block pool know of
one cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.attention.gpu import GPUAttention
from engine.attention.interface import AttentionOptions
from engine.batch import Batch
from engine.devices import make_current
from engine.staging import Staging


class StagedAttention:
    """parts: by their devices, in the order in which a step reaches them."""

    def __init__(self, parts: Mapping[str, GPUAttention]) -> None:
        self.parts = dict(parts)
        self._of = {layer: part for part in parts.values() for layer in part.caches}
        self._stagings = {name: Staging(torch.device(name)) for name in parts}
        self._staged: list[Batch] = []
        first = next(iter(parts.values()))
        self.description = f"on {', '.join(parts)}: {first.description}"

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
