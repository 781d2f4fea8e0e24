"""The weights of all experts of a mixture in one tensor, multiplied in one launch on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.packed import PackedWeights, one_row_plan, tile_plan
from engine.kernels.packed_codes import Packed
from engine.kernels.weights import Weights

FEW_PAIRS = 32
"""Pairs of token and expert that are multiplied one by one: fewer than most mixtures have experts,
so that hardly a weight is read twice. A row's result then depends on nothing else in the step."""


class Route:
    """The experts of each token in one pass of a mixture: chosen [T, k]."""

    def __init__(self, chosen: Tensor, num_experts: int) -> None:
        from engine.kernels.triton.experts import Tiles, plan_tiles

        self.slots = chosen.shape[-1]
        self.chosen = chosen.reshape(-1).contiguous()
        pairs = self.chosen.numel()
        self.tiles: Tiles | None = None
        if pairs > FEW_PAIRS:
            self.tiles = plan_tiles(self.chosen, num_experts, _tile_rows(pairs, num_experts))


class StackedExperts:
    """Packed weights [experts, out, in] of all experts, stacked."""

    def __init__(self, parts: Sequence[PackedWeights]) -> None:
        """Takes the memory of `parts` over: they become views, one tensor after the other."""
        first = parts[0].packed
        words = _stacked(parts, "words")
        scales = _stacked(parts, "scales")
        zeros = None if first.zeros is None else _stacked(parts, "zeros")
        self._held: Packed = first._replace(words=words, scales=scales, zeros=zeros)
        self._plans = one_row_plan(self._held), tile_plan(self._held)

    def product(self, x: Tensor, route: Route, bias: Tensor | None, shared: int) -> Tensor:
        """x [pairs / shared, in] with bias [experts, out]: [pairs, out]."""
        from engine.kernels.triton import experts

        by_row, by_tile = self._plans
        x = x.contiguous()
        if route.tiles is None:
            return experts.one_by_one(x, route.chosen, self._held, bias, shared, by_row)
        return experts.by_tiles(x, route.tiles, self._held, bias, shared, by_tile)


def stacked(parts: Sequence[Weights]) -> StackedExperts | None:
    """All experts together; None where they are not packed alike."""
    packed = [part for part in parts if isinstance(part, PackedWeights)]
    if len(packed) != len(parts):
        return None
    kinds = {
        (p.packed.format, p.packed.shape, p.packed.group, p.packed.scales.dtype,
         p.packed.has_zeros, p.packed.numbers)
        for p in packed
    }  # fmt: skip
    return StackedExperts(packed) if len(kinds) == 1 else None


def _stacked(parts: Sequence[PackedWeights], name: str) -> Tensor:
    """One tensor of all; each part lets go of its own as soon as it is copied."""
    first: Tensor = getattr(parts[0].packed, name)
    whole = torch.empty(len(parts), *first.shape, dtype=first.dtype, device=first.device)
    for index, part in enumerate(parts):
        whole[index].copy_(getattr(part.packed, name))
        part.packed = part.packed._replace(**{name: whole[index]})  # type: ignore[arg-type]
    return whole


def _tile_rows(pairs: int, num_experts: int) -> int:
    """As many as an expert gets if all get alike, in steps that the tensor cores take."""
    each = pairs / num_experts
    return 16 if each <= 24 else 32 if each <= 48 else 64
