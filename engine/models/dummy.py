"""Seeded random numbers at the speed of a copy, for models without their files."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.parallel.share import Share

POOL = 4 * 1024 * 1024  # elements: a size that stays in the last-level cache


class DummyFiller:
    """Normal(0, std) values for matrices, ones for norms, zeros for biases.

    The values come from one pool of up to 4 million random numbers, which is laid out again
    from a random place for every piece: so an 8-billion-parameter model fills at the speed of a
    copy. Speed and memory are those of real weights; the text is noise either way. The same
    seed, model and dtype give the same weights.
    """

    def __init__(self, seed: int, std: float, dtype: torch.dtype, num_elements: int) -> None:
        self._generator = torch.Generator().manual_seed(seed % 2**63)
        size = max(1024, min(POOL, num_elements))
        pool = torch.empty(size).normal_(0.0, std, generator=self._generator)
        self._pool = pool.to(dtype)
        self._near = self._pool  # the same where the last tensor lies
        self._seed = seed

    def fill(
        self, name: str, tensor: torch.Tensor, share: Share | None = None, piece: int = 0
    ) -> None:
        """share: of a tensor parallel rank, whose values are its own where the weight is sharded.
        piece: of a weight that is filled piece by piece."""
        if share is not None:
            rank = 1 + share.rank if share.is_cut(name) else 0
            mixed = zlib.crc32(f"{self._seed} {rank} {name} {piece}".encode())
            self._generator.manual_seed(mixed)
        if not tensor.is_floating_point():
            tensor.zero_()
        elif tensor.dim() >= 2:
            self._fill_random(tensor)
        elif "norm" in name.lower() or ".ln_" in name or name.startswith("ln_"):
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            tensor.zero_()

    def _fill_random(self, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():  # a transposed or strided view: one row at a time
            for row in tensor:
                row.copy_(self._flow(row.new_empty(row.numel())).view(row.shape))
            return
        self._flow(tensor.view(-1))

    def _flow(self, flat: torch.Tensor) -> torch.Tensor:
        """Write pieces of the pool, each from a random place to its end, until `flat` is full."""
        size, start = self._pool.numel(), 0
        if self._near.device != flat.device:
            self._near = self._pool.to(flat.device)
        while start < flat.numel():
            offset = int(torch.randint(size // 2, (), generator=self._generator))
            count = min(size - offset, flat.numel() - start)
            flat[start : start + count].copy_(self._near[offset : offset + count])
            start += count
        return flat
