"""Products of a mixture's experts with packed weights, each pair of token and expert with its own.

    pair p = token * k + slot      x row: p // shared (the token's, or the pair's own)
                                   weight: experts[p]; out row: p

A few pairs are multiplied one by one. For many, tiles of pairs of the same expert are laid out by
the device (`plan_tiles`): nothing about them reaches the host.

    order [pairs]      places of pairs, expert by expert
    tile i             pairs order[start[i] : end[i]], all of expert owner[i]; empty past the last
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.packed_codes import Packed, Plan
from engine.kernels.triton.packed import _ONE, dot_dtype, row_sums, tile_sums


@triton.jit
def one_by_one_kernel(
    x, experts, words, scales, zeros, bias, out,
    N, K, shared, x_stride, stride, num_blocks, words_each, groups_each, one,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (n, p): BLOCK_N outputs of pair p."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.program_id(1).to(tl.int64)
    inside = outputs < N
    expert = tl.load(experts + pair).to(tl.int64)
    groups = expert * groups_each
    if FORMAT != "table":  # one table for all
        zeros += groups
    result = row_sums(
        x + pair // shared * x_stride, words + expert * words_each, scales + groups,
        zeros, outputs, inside, 0, K, stride, num_blocks, one,
        FORMAT, GROUP, HAS_ZEROS, IS_EVEN, BLOCKS, BLOCK_N, STAGES,
    )  # fmt: skip
    if HAS_BIAS:
        result += tl.load(bias + expert * N + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + pair * N + outputs, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def tiles_kernel(
    x, order, owner, start, end, words, scales, zeros, bias, out,
    N, K, shared, x_stride, stride, num_blocks, words_each, groups_each,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, DOT_DTYPE: tl.constexpr,
):  # fmt: skip
    """Program (n, i): BLOCK_N outputs of tile i."""
    tile = tl.program_id(1)
    first = tl.load(start + tile)
    last = tl.load(end + tile)
    if first < last:
        outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = outputs < N
        places = first + tl.arange(0, BLOCK_M)
        own = places < last
        pairs = tl.load(order + places, mask=own, other=0).to(tl.int64)
        expert = tl.load(owner + tile).to(tl.int64)
        groups = expert * groups_each
        if FORMAT != "table":  # one table for all
            zeros += groups
        total = tile_sums(
            x + (pairs // shared)[:, None] * x_stride, own, words + expert * words_each,
            scales + groups, zeros, outputs, inside, 0, K, stride, num_blocks,
            tl.arange(0, 32), FORMAT, GROUP, HAS_ZEROS, IS_EVEN, BLOCKS, BLOCK_M, BLOCK_N, STAGES,
            x.dtype.element_ty, DOT_DTYPE,
        )  # fmt: skip
        if HAS_BIAS:
            added = tl.load(bias + expert * N + outputs, mask=inside, other=0.0)
            total += added.to(tl.float32)[None, :]
        place = pairs[:, None] * N + outputs[None, :]
        tl.store(out + place, total.to(out.dtype.element_ty), mask=own[:, None] & inside[None, :])


class Tiles(NamedTuple):
    """The tensors of the drawing above, and the number of rows of a tile."""

    order: Tensor
    owner: Tensor
    start: Tensor
    end: Tensor
    rows: int


def plan_tiles(chosen: Tensor, num_experts: int, rows: int) -> Tiles:
    """Tiles of at most `rows` pairs for chosen [pairs], without asking the device for anything."""
    pairs = chosen.numel()
    in_order, order = torch.sort(chosen, stable=True)
    experts = torch.arange(num_experts + 1, device=chosen.device)
    offsets = torch.searchsorted(in_order, experts)
    ends = torch.cumsum((offsets.diff() + (rows - 1)) // rows, 0)  # in tiles
    count = pairs // rows + min(pairs, num_experts)  # each expert may end with a part of a tile
    tiles = torch.arange(count, device=chosen.device)
    owner = torch.searchsorted(ends, tiles, right=True)
    is_one = owner < num_experts
    owner = owner.clamp_max(num_experts - 1)
    before = ends[(owner - 1).clamp_min(0)] * (owner > 0)
    start = offsets[owner] + (tiles - before) * rows
    end = torch.minimum(start + rows, offsets[owner + 1])
    return Tiles(order, owner, start, torch.where(is_one, end, start), rows)


def one_by_one(
    x: Tensor, chosen: Tensor, held: Packed, bias: Tensor | None, shared: int, plan: Plan
) -> Tensor:
    """x [pairs / shared, in], chosen [pairs], bias [experts, out]: [pairs, out]."""
    pairs = chosen.numel()
    count, width = held.shape
    out = x.new_empty(pairs, count)
    one_by_one_kernel[(triton.cdiv(count, plan.block_n), pairs)](
        x, chosen, *held.tensors, x if bias is None else bias, out,
        count, width, shared, x.stride(0), held.stride, held.num_blocks,
        held.words.stride(0), held.scales.stride(0), _ONE,
        held.format, held.group, held.has_zeros, bias is not None, held.is_even(1),
        held.num_blocks, plan.block_n, plan.stages, num_warps=plan.warps,
    )  # fmt: skip
    return out


def by_tiles(
    x: Tensor, tiles: Tiles, held: Packed, bias: Tensor | None, shared: int, plan: Plan
) -> Tensor:
    """As `one_by_one`, for the pairs that `tiles` was made of."""
    count, width = held.shape
    out = x.new_empty(len(tiles.order), count)
    tiles_kernel[(triton.cdiv(count, plan.block_n), len(tiles.owner))](
        x, tiles.order, tiles.owner, tiles.start, tiles.end, *held.tensors,
        x if bias is None else bias, out, count, width, shared, x.stride(0), held.stride,
        held.num_blocks, held.words.stride(0), held.scales.stride(0),
        held.format, held.group, held.has_zeros, bias is not None, held.is_even(1),
        held.num_blocks, tiles.rows, plan.block_n, plan.stages, dot_dtype(x.dtype),
        num_warps=plan.warps,
    )  # fmt: skip
    return out
