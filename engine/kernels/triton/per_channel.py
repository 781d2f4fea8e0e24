"""Matmuls with 8-bit weights and per-channel scales, row-major.

int8    activations quantized to int8 per row; integer sums, exact in any order
fp8     activations unchanged; weights are converted to their dtype in the tile
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.packed import dot_dtype
from engine.kernels.triton.support import next_power_of_2

_BLOCK_K = 128
_BLOCK_N = 64


@triton.jit
def quantize_kernel(
    x, values, scales, width, filled, x_stride,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, width] to 8 bits [rows, filled] and a scale per row: its greatest magnitude becomes
    LARGEST. Integers are rounded half up; NaN and infinity reach the scale."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    wide = tl.load(x + row * x_stride + columns, mask=columns < width, other=0.0).to(tl.float32)
    # a comparison with NaN is false: a sum carries it where a maximum may not
    spoilt = tl.sum(wide * 0.0, axis=0)
    largest = tl.max(tl.abs(wide), axis=0)
    step = LARGEST / tl.maximum(largest, 1e-30)
    scaled = tl.minimum(tl.maximum(wide * step, -LARGEST), LARGEST)
    if LARGEST == 127:
        scaled = tl.floor(scaled + 0.5)
    tl.store(
        values + row * filled + columns, scaled.to(values.dtype.element_ty), mask=columns < filled
    )
    tl.store(scales + row, largest / LARGEST + spoilt)


@triton.jit(do_not_specialize=["M"])
def rows_kernel(
    x, x_scales, weight, w_scales, bias, out, M, N, K, filled, steps,
    IS_INT: tl.constexpr, IS_SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DOT_DTYPE: tl.constexpr,
):  # fmt: skip
    """x [M, ...] (int8 [M, filled], or plain [M, K]) times weight [N, filled]^T, both scaled: out
    [M, N], or sums [splits, M, N] that are not scaled yet."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    own, inside = tokens < M, outputs < N
    lanes = tl.arange(0, BLOCK_K)
    x_stride = filled if IS_INT else K
    row = x + tokens[:, None].to(tl.int64) * x_stride
    column = weight + outputs[None, :].to(tl.int64) * filled
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.int32 if IS_INT else tl.float32)
    for step in tl.range(0, steps):
        inputs = (split * steps + step) * BLOCK_K + lanes
        there = inputs < x_stride
        a = tl.load(row + inputs[None, :], mask=own[:, None] & there[None, :], other=0)
        b = tl.load(
            column + inputs[:, None], mask=(inputs < filled)[:, None] & inside[None, :], other=0
        )
        if IS_INT:
            total = tl.dot(a, b, total, out_dtype=tl.int32)
        else:
            # float8_e4m3fn by its bits: sign, exponent and fraction to their places
            bits = (b.to(tl.int32) << 20) & -0x78100000
            plain = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
            total = tl.dot(a.to(DOT_DTYPE), plain.to(DOT_DTYPE), total, input_precision="ieee")
    place = tokens[:, None].to(tl.int64) * N + outputs[None, :]
    written = own[:, None] & inside[None, :]
    if IS_SPLIT:
        tl.store(out + split.to(tl.int64) * M * N + place, total, mask=written)
    else:
        scale = tl.load(w_scales + outputs, mask=inside, other=0.0)
        result = total.to(tl.float32) * scale[None, :]
        if IS_INT:
            result = result * tl.load(x_scales + tokens, mask=own, other=0.0)[:, None]
        if HAS_BIAS:
            result += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["rows"])
def scale_kernel(
    sums, x_scales, w_scales, bias, out, rows, N, sums_stride, out_stride,
    SPLITS: tl.constexpr, IS_INT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums [SPLITS, rows, sums_stride] added up in their order, scaled, and bias: out [rows, N]."""
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = outputs < N
    total = tl.load(sums + row * sums_stride + outputs, mask=inside, other=0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + (split * rows + row) * sums_stride + outputs, mask=inside, other=0)
    result = total.to(tl.float32) * tl.load(w_scales + outputs, mask=inside, other=0.0)
    if IS_INT:
        result = result * tl.load(x_scales + row)
    if HAS_BIAS:
        result += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + outputs, result.to(out.dtype.element_ty), mask=inside)


def quantize_rows(x: Tensor, filled: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [rows, width] as int8 or float8_e4m3fn [rows, filled], filled up with zeros, and the scale
    float32 [rows, 1] of each row."""
    rows, width = x.shape
    values = x.new_empty(rows, filled, dtype=dtype)
    scales = x.new_empty(rows, 1, dtype=torch.float32)
    block = next_power_of_2(filled)
    quantize_kernel[(rows,)](
        x, values, scales, width, filled, x.stride(0),
        127 if dtype is torch.int8 else 448, block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return values, scales


def product(
    x: Tensor, x_scales: Tensor | None, weight: Tensor, w_scales: Tensor, bias: Tensor | None,
    count: int, splits: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """x times weight [count or more, filled]^T for a few rows: [rows, count] in `dtype`. With
    x_scales [rows, 1] x is int8 [rows, filled] and so is the weight; without, x is plain [rows, in]
    and the weight bits of float8, as int8."""
    rows, width = x.shape
    filled = weight.shape[1]
    is_int = x_scales is not None
    blocks = triton.cdiv(filled, _BLOCK_K)
    splits = min(splits, blocks)
    target = x.new_empty(rows, count, dtype=dtype)
    out = target
    if splits > 1:
        kind = torch.int32 if is_int else torch.float32
        out = x.new_empty(splits, rows, count, dtype=kind)
    block_m = min(64, max(16, next_power_of_2(rows)))
    scales = w_scales if x_scales is None else x_scales
    grid = (triton.cdiv(count, _BLOCK_N), splits, triton.cdiv(rows, block_m))
    rows_kernel[grid](
        x, scales, weight, w_scales, w_scales if bias is None else bias, out,
        rows, count, width, filled, triton.cdiv(blocks, splits), is_int, splits > 1,
        bias is not None and splits == 1, block_m, _BLOCK_N, _BLOCK_K, dot_dtype(x.dtype),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        scaled(out, x_scales, w_scales, bias, target)
    return target


def scaled(
    sums: Tensor, x_scales: Tensor | None, w_scales: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """out [rows, n] = sums [splits, rows, n or more] added up, times the scales of rows and of
    outputs, and bias."""
    splits, rows, stride = sums.shape
    count = out.shape[1]
    scale_kernel[(rows, triton.cdiv(count, 512))](
        sums, w_scales if x_scales is None else x_scales, w_scales,
        w_scales if bias is None else bias, out, rows, count, stride, out.stride(0),
        splits, x_scales is not None, bias is not None, 512,
    )  # fmt: skip
