"""Paged attention with CPU offload: each layer's pages are on the device that computes the layer.

    block 7       keys and values of its tokens in layers 0 ... n - 1: CPU memory
                  in layers n and later: GPU memory

Block ids and block tables are the same on both devices: scheduler and block pool see one cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.attention.cpu import CPUAttention
from engine.attention.gpu import GPUAttention
from engine.attention.interface import AttentionOptions, PagedBackend
from engine.batch.batch import Batch
from engine.batch.transfer import Staging


class OffloadedAttention:
    """The backends of both devices as one. host, gpu: backends with the caches of their layers.
    device: the GPU."""

    def __init__(self, host: CPUAttention, gpu: GPUAttention, device: torch.device) -> None:
        self.host, self.gpu = host, gpu
        self._of: dict[int, PagedBackend] = {
            **dict.fromkeys(host.caches, host), **dict.fromkeys(gpu.caches, gpu)
        }  # fmt: skip
        self._staging = Staging(device)
        self._staged: Batch | None = None
        self.description = f"{len(host.caches)} layers on the CPU; {gpu.description}"

    @property
    def nbytes(self) -> int:
        """On the GPU."""
        return self.gpu.nbytes

    @property
    def resident(self) -> int:
        return self.gpu.resident

    @property
    def host_nbytes(self) -> int:
        return self.host.nbytes

    @property
    def workspace_bytes(self) -> int:
        """GPU memory beside the cache."""
        return self.gpu.workspace_bytes

    @property
    def staged(self) -> Batch:
        """The batch of the step, on the GPU."""
        assert self._staged is not None, "begin_step comes first"
        return self._staged

    def begin_step(self, batch: Batch) -> None:
        """`batch` is on the host."""
        self.host.begin_step(batch)
        self._staged = self._staging.copy(batch)
        self.gpu.begin_step(self._staged)

    def clear_blocks(self, blocks: list[int]) -> None:
        self.host.clear_blocks(blocks)
        self.gpu.clear_blocks(blocks)

    @contextmanager
    def as_before(self, block: int) -> Iterator[None]:
        """Inside of it, writes to a block are undone at the end."""
        caches = (*self.host.caches.values(), *self.gpu.caches.values())
        stored = [pages.tensors for cache in caches for pages in cache]
        tensors = [t for one in stored for t in (one.elements, one.scales) if t is not None]
        kept = [tensor[block].clone() for tensor in tensors]
        try:
            yield
        finally:
            for tensor, before in zip(tensors, kept, strict=True):
                tensor[block].copy_(before)

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
