"""Seeded random weights, for models without weight files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.embedding import CHUNK_ROWS
from engine.models.architecture import build_on_meta
from engine.numerics.scheme import scheme_like, weights_to_hold

if TYPE_CHECKING:
    from engine.models.loader import LoadRequest
    from engine.models.materialise import Slots
    from engine.models.targets import Target

GENERATING = "Generating random weights"
POOL = 4 * 1024 * 1024  # elements: a size that stays in the last-level cache


class DummyFiller:
    """Normal(0, std) values for matrices, ones for norms, zeros for biases.

    The values are copied from one pool of up to 4 million random numbers, starting at a random
    offset for every piece. An 8-billion-parameter model is filled at the speed of a copy. Speed and
    memory are those of real weights; the text is meaningless. The same seed, model and dtype give
    the same weights.
    """

    def __init__(self, seed: int, std: float, dtype: torch.dtype, num_elements: int) -> None:
        self._generator = torch.Generator().manual_seed(seed % 2**63)
        size = max(1024, min(POOL, num_elements))
        pool = torch.empty(size).normal_(0.0, std, generator=self._generator)
        self._pool = pool.to(dtype)
        self._near = self._pool  # the same where the last tensor lies

    def fill(self, name: str, tensor: Tensor) -> None:
        if not tensor.is_floating_point():
            tensor.zero_()
        elif tensor.dim() >= 2:
            self._fill_random(tensor)
        elif "norm" in name.lower() or ".ln_" in name or name.startswith("ln_"):
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            tensor.zero_()

    def _fill_random(self, tensor: Tensor) -> None:
        if not tensor.is_contiguous():  # a transposed or strided view: one row at a time
            for row in tensor:
                row.copy_(self._flow(row.new_empty(row.numel())).view(row.shape))
            return
        self._flow(tensor.view(-1))

    def _flow(self, flat: Tensor) -> Tensor:
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


class DummyWeights:
    """Random values at the shape of a checkpoint, quantized where the checkpoint is. See
    `DiskWeights`."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        stored = request.checkpoint.quantization
        self.scheme = request.scheme if stored is None else scheme_like(stored)
        self._reference = build_on_meta(request.checkpoint.config)
        has_quantized = stored is not None or self.scheme.method != "none"
        self.quantized = weights_to_hold(self._reference) if has_quantized else {}
        self.tied: dict[str, str] = dict(getattr(self._reference, "all_tied_weights_keys", {}))
        self.notices: list[str] = []
        # as the model's makers initialise theirs
        self._std = float(getattr(request.checkpoint.config, "initializer_range", None) or 0.02)

    @cached_property
    def _filler(self) -> DummyFiller:
        return self._new_filler(POOL)

    def _new_filler(self, num_elements: int) -> DummyFiller:
        return DummyFiller(self._request.seed, self._std, self._request.dtype, num_elements)

    def open(self, in_targets: set[str]) -> nullcontext[None]:
        return nullcontext()

    def fill(self, slots: Slots) -> None:
        views = {name: slot.view() for name, slot in slots.items() if name not in self.tied}
        total = sum(view.nbytes for view in views.values())
        filler = self._new_filler(sum(v.numel() for v in views.values()))
        done = 0
        for name, view in views.items():
            self._request.check()
            filler.fill(name, view)
            done += view.nbytes
            self._request.progress(GENERATING, done, total)

    def in_order(self, targets: Sequence[Target]) -> Iterator[Target]:
        itemsize = self._request.dtype.itemsize
        sizes = [sum(math.prod(self.quantized[name]) for name in t.names) for t in targets]
        done, total = 0, sum(sizes) * itemsize
        for target, size in zip(targets, sizes, strict=True):
            self._request.progress(GENERATING, done, total)
            yield target
            done += size * itemsize

    def values(self, name: str, expert: int | None) -> list[Tensor]:
        return [self._random(name, self.quantized[name][-2:])]

    def rows(self, name: str) -> Iterator[Tensor]:
        count, width = self._reference.get_parameter(name).shape
        for start in range(0, count, CHUNK_ROWS):
            yield self._random(name, (min(CHUNK_ROWS, count - start), width))

    def _random(self, name: str, shape: tuple[int, ...]) -> Tensor:
        request = self._request
        tensor = torch.empty(shape, dtype=request.dtype, device=request.device_map.of(name))
        self._filler.fill(name, tensor)
        return tensor
