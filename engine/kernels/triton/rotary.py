"""Rotary embedding of queries and keys in one launch, with their norms before it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.support import next_power_of_2

_HEADS = 4  # of a program


@triton.jit
def factor(of_queries, of_keys, columns, is_query, inside, offset):
    """[heads, columns]: what a normed head is multiplied with."""
    query = tl.load(of_queries + columns, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(of_keys + columns, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], query[None, :], key[None, :]) + offset


@triton.jit
def rotary_kernel(
    x, cos, sin, of_queries, of_keys, out,
    num_heads, num_queries, x_stride, angle_stride, eps, offset,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """x [T, num_heads, WIDTH] with x_stride between tokens; out contiguous. The first 2 * HALF
    numbers of a head are turned, in halves; the rest stays."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    own = heads < num_heads
    columns = tl.arange(0, BLOCK)
    inside = columns < HALF
    mask = own[:, None] & inside[None, :]
    place = x + token * x_stride + heads[:, None] * WIDTH
    first = tl.load(place + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + (HALF + columns)[None, :], mask=mask, other=0.0).to(tl.float32)
    target = out + (token * num_heads + heads[:, None]) * WIDTH
    is_query = heads < num_queries
    if HAS_NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if REST > 0:
        more = tl.arange(0, REST)
        there = more < WIDTH - 2 * HALF
        both = own[:, None] & there[None, :]
        rest = tl.load(place + (2 * HALF + more)[None, :], mask=both, other=0.0)
        if HAS_NORM:
            squares += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), axis=1)
    if HAS_NORM:
        scale = (1.0 / tl.sqrt(squares / WIDTH + eps))[:, None]
        left = factor(of_queries, of_keys, columns, is_query, inside, offset)
        right = factor(of_queries, of_keys, HALF + columns, is_query, inside, offset)
        first = (first * scale * left).to(out.dtype.element_ty).to(tl.float32)
        second = (second * scale * right).to(out.dtype.element_ty).to(tl.float32)
    if REST > 0:
        if HAS_NORM:
            last = factor(of_queries, of_keys, 2 * HALF + more, is_query, there, offset)
            rest = (rest.to(tl.float32) * scale * last).to(out.dtype.element_ty)
        tl.store(target + (2 * HALF + more)[None, :], rest, mask=both)
    angles = token * angle_stride + columns
    c = tl.load(cos + angles, mask=inside, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angles, mask=inside, other=0.0).to(tl.float32)[None, :]
    turned = (first * c - second * s).to(out.dtype.element_ty)
    tl.store(target + columns[None, :], turned, mask=mask)
    turned = (second * c + first * s).to(out.dtype.element_ty)
    tl.store(target + (HALF + columns)[None, :], turned, mask=mask)


def rotate_heads(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    num_queries: int = 0,
    eps: float = 0.0,
    offset: float = 0.0,
) -> Tensor:
    """heads [T, H, D], queries before keys, turned by cos and sin [T, R], R at most D, whose halves
    are equal. `norms`: weights [D] for the first num_queries heads and for the others, with which
    they are normed first (RMSNorm). The result is contiguous."""
    num_tokens, num_heads, width = heads.shape
    if heads.stride(-1) != 1 or heads.stride(1) != width:
        heads = heads.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    half = cos.shape[-1] // 2
    out = heads.new_empty(heads.shape)
    of_queries, of_keys = norms or (heads, heads)
    if num_tokens:
        rotary_kernel[(num_tokens, triton.cdiv(num_heads, _HEADS))](
            heads, cos, sin, of_queries, of_keys, out,
            num_heads, num_queries, heads.stride(0), cos.shape[-1], eps, offset,
            _HEADS, width, half, next_power_of_2(half),
            next_power_of_2(width - 2 * half) if width > 2 * half else 0, norms is not None,
            num_warps=4 if half >= 64 else 2,
        )  # fmt: skip
    return out
