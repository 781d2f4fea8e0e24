"""Writes a step's keys and values to their pages, rounding them to 8 bits on the way.

Codes and scales are those of `engine.attention.pages.quantize`, bit for bit: rounding is done
on the bits of float32, since devices before Ada cannot convert to fp8, and the interpreter cuts
bfloat16 off.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.paged_kv import PageTensors
from engine.kernels.triton.support import next_power_of_2

_MOST_ELEMENTS = 4096  # of the tile of a program


@triton.jit
def _bfloat16_bits(number):
    """float32 rounded to bfloat16, half to even, as the 16 bits of that."""
    bits = number.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(number != number, 0x7FC0, rounded).to(tl.uint32)


@triton.jit
def _int8_codes(scaled):
    # beyond 1.5 * 2^23 float32 has no fractions: adding it rounds, half to even
    return (scaled + 12582912.0 - 12582912.0).to(tl.int32).to(tl.int8)


@triton.jit
def _fp8_codes(scaled):
    """The bits of float8_e4m3fn, rounded half to even; 448 and above become 448."""
    signs = (scaled.to(tl.uint32, bitcast=True) >> 31).to(tl.int32) << 7
    size = tl.minimum(tl.abs(scaled), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # three digits of the fraction stay; the bias of the exponent is 7 and no longer 127
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (size * 512.0 + 12582912.0 - 12582912.0).to(tl.int32)
    codes = tl.where(size < 0.015625, small, normal)
    return (codes | signs).to(tl.int8)


@triton.jit
def _write(
    new, pages, scales, token, stride_t, stride_h, block, place, first_head,
    FORM: tl.constexpr, NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    heads, dims = first_head + tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = heads < NUM_HEADS
    mask = inside[:, None] & (dims < DIM)[None, :]
    pointers = new + token.to(tl.int64) * stride_t + heads[:, None] * stride_h + dims[None, :]
    tile = tl.load(pointers, mask=mask, other=0.0)
    rows = (block * NUM_HEADS + heads) * BLOCK_SIZE + place
    targets = pages + rows[:, None] * DIM + dims[None, :]
    if FORM == "plain":
        tl.store(targets, tile, mask=mask)
    else:
        largest: tl.constexpr = 127.0 if FORM == "int8" else 448.0
        wide = tile.to(tl.float32)
        most = tl.maximum(tl.max(tl.abs(wide), 1), 1e-30) * (1.0 / largest)
        # the maximum is not always NaN where an element is
        most = tl.where(tl.sum((wide != wide).to(tl.int32), 1) > 0, float("nan"), most)
        bits = _bfloat16_bits(most)
        tl.store(scales + rows, bits.to(tl.int16), mask=inside)
        scale = (bits << 16).to(tl.float32, bitcast=True)
        scaled = tl.div_rn(wide, tl.broadcast_to(scale[:, None], wide.shape))
        codes = _int8_codes(scaled) if FORM == "int8" else _fp8_codes(scaled)
        tl.store(targets, codes, mask=mask)


@triton.jit
def write_pages(
    k, v, keys, values, key_scales, value_scales, slots,
    stride_kt, stride_kh, stride_vt, stride_vh,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, groups of HEADS heads)."""
    token, first_head = tl.program_id(0), tl.program_id(1) * HEADS
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        _write(
            k, keys, key_scales, token, stride_kt, stride_kh, block, place, first_head,
            KEY_FORM, NUM_HEADS, BLOCK_SIZE, KEY_DIM, KEY_WIDTH, HEADS,
        )  # fmt: skip
        _write(
            v, values, value_scales, token, stride_vt, stride_vh, block, place, first_head,
            VALUE_FORM, NUM_HEADS, BLOCK_SIZE, VALUE_DIM, VALUE_WIDTH, HEADS,
        )  # fmt: skip


def write_kv(k: Tensor, v: Tensor, keys: PageTensors, values: PageTensors, slots: Tensor) -> None:
    """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at slots[T] (block * block_size + place in it; below 0:
    nowhere). k and v may have any strides but that of the last dimension, which is 1."""
    _, num_heads, block_size, key_dim = keys.elements.shape
    value_dim = values.elements.shape[3]
    widths = next_power_of_2(key_dim), next_power_of_2(value_dim)
    heads = min(next_power_of_2(num_heads), max(1, _MOST_ELEMENTS // max(widths)))
    k, v = _of_pages(k, keys), _of_pages(v, values)
    write_pages[(len(slots), -(-num_heads // heads))](
        k, v, keys.elements, values.elements, _bits(keys.scales), _bits(values.scales), slots,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        KEY_FORM=keys.form, VALUE_FORM=values.form,
        NUM_HEADS=num_heads, BLOCK_SIZE=block_size, KEY_DIM=key_dim, VALUE_DIM=value_dim,
        KEY_WIDTH=widths[0], VALUE_WIDTH=widths[1], HEADS=heads, num_warps=4,
    )  # fmt: skip


def _of_pages(new: Tensor, stored: PageTensors) -> Tensor:
    """In the number format of plain pages, and with elements that lie beside each other."""
    if stored.form == "plain":
        new = new.to(stored.elements.dtype)
    return new if new.stride(-1) == 1 or new.shape[-1] == 1 else new.contiguous()


def _bits(scales: Tensor | None) -> Tensor | None:
    return None if scales is None else scales.view(torch.int16)
