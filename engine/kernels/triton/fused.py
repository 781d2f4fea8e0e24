"""Gated activation, RMSNorm and rotary embedding, one launch each."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.cpu.elementwise import HeadNorms
from engine.kernels.triton.support import next_power_of_2

_BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(x, out, size, x_stride, BLOCK: tl.constexpr):
    """out[row] = silu(x[row, :size]) * x[row, size : 2 * size], in float32 inside."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    place = x + row * x_stride + columns
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + size, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * size + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [..., 2 size], gate before up: [..., size]."""
    flat = gate_up.reshape(-1, gate_up.shape[-1])
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    rows, size = flat.shape[0], flat.shape[1] // 2
    out = flat.new_empty(rows, size)
    if rows:
        silu_and_mul_kernel[(rows, triton.cdiv(size, _BLOCK))](
            flat, out, size, flat.stride(0), _BLOCK, num_warps=4
        )
    return out.view(*gate_up.shape[:-1], size)


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, width, x_stride, residual_stride, eps, offset,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = v / sqrt(mean(v^2) + eps) * (offset + weight), where v = x[row], or x[row] +
    residual[row], which `total` gets, rounded as it is."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        before = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
        rounded = (value + before.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row * width + columns, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + offset
    normed = value * scale * factor
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """x [..., width] normed over its last dimension and times offset + weight [width]."""
    flat = _rows(x)
    out = x.new_empty(flat.shape)
    _launch(flat, None, weight, out, None, eps, offset)
    return out.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    """(RMSNorm of x + residual, x + residual), both [..., width]."""
    flat, before = _rows(x), _rows(residual)
    out, total = x.new_empty(flat.shape), x.new_empty(flat.shape)
    _launch(flat, before, weight, out, total, eps, offset)
    return out.view(x.shape), total.view(x.shape)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, total: Tensor | None,
    eps: float, offset: float,
) -> None:  # fmt: skip
    rows, width = x.shape
    if not rows:
        return
    block = next_power_of_2(width)
    rms_norm_kernel[(rows,)](
        x, x if residual is None else residual, weight, out, out if total is None else total,
        width, x.stride(0), 0 if residual is None else residual.stride(0), eps, offset,
        residual is not None, block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    """[rows, width] with neighbouring columns; a view where it can be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()


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
    heads: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms | None = None
) -> Tensor:
    """heads [T, H, D], queries before keys, normed by `norms` and turned by cos and sin [T, R], R
    at most D, whose halves are equal. The result is contiguous."""
    num_tokens, num_heads, width = heads.shape
    if heads.stride(-1) != 1 or heads.stride(1) != width:
        heads = heads.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    half = cos.shape[-1] // 2
    out = heads.new_empty(heads.shape)
    of_queries, of_keys, num_queries, eps, offset = norms or (heads, heads, 0, 0.0, 0.0)
    if num_tokens:
        rotary_kernel[(num_tokens, triton.cdiv(num_heads, _HEADS))](
            heads, cos, sin, of_queries, of_keys, out,
            num_heads, num_queries, heads.stride(0), cos.shape[-1], eps, offset,
            _HEADS, width, half, next_power_of_2(half),
            next_power_of_2(width - 2 * half) if width > 2 * half else 0, norms is not None,
            num_warps=4 if half >= 64 else 2,
        )  # fmt: skip
    return out
