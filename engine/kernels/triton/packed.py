"""Matmuls with packed weights: 4- and 8-bit integers, float8, and codes of a table (NF4, FP4).

A table of 16 numbers stays in registers, and goes through shared memory for each lookup: its
numbers are in 16 banks, so the threads of a warp never conflict. Four fields of each word are
looked up together, because a program synchronizes before and after. (A table in global memory would
be prefetched like weights, into hundreds of KiB; selecting among 16 constants takes 16 instructions
per weight.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.packed_codes import Packed, Plan
from engine.kernels.triton.support import is_interpreted, next_power_of_2


@triton.jit
def looked_up(words, table, FIRST: tl.constexpr):
    """Fields FIRST, ..., FIRST + 3 of int32 words, as the numbers of `table` [16]."""
    one = tl.join((words >> (4 * FIRST)) & 15, (words >> (4 * FIRST + 4)) & 15)
    other = tl.join((words >> (4 * FIRST + 8)) & 15, (words >> (4 * FIRST + 12)) & 15)
    places = tl.join(one, other)
    found = tl.gather(table, tl.reshape(places, [places.numel]), 0)
    first, second = tl.split(tl.reshape(found, places.shape))
    a, b = tl.split(first)
    c, d = tl.split(second)
    return a, b, c, d


_ONE = 0x3F800000  # the bits of 1.0 in float32
_MOST_ROWS = 64  # of a program: more would not fit the shared memory of smaller GPUs


@triton.jit
def unpacked(words, one, FIELD: tl.constexpr, FORMAT: tl.constexpr):
    """Field FIELD of int32 words as float32: 1 + code / 16, 1 + code / 256, or a float8's value.

    `one`: the bits of 1.0, an argument of the kernel and no constant, so that the compiler keeps it
    in a register: an instruction that masks and sets bits takes one constant, not two.
    """
    if FORMAT == "int4":
        if FIELD < 5:
            bits = words << (19 - 4 * FIELD)
        else:
            bits = words >> (4 * FIELD - 19)
        return ((bits & 0x00780000) | one).to(tl.float32, bitcast=True)
    elif FORMAT == "int8":
        if FIELD < 2:
            bits = words << (15 - 8 * FIELD)
        else:
            bits = words >> (8 * FIELD - 15)
        return ((bits & 0x007F8000) | one).to(tl.float32, bitcast=True)
    else:  # e4m3: sign, exponent and fraction to their places in a float32
        bits = (words << (24 - 8 * FIELD)) >> 4
        # 0x87F00000: the sign, which the shift has doubled, is kept once
        return (bits & -0x78100000).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120


@triton.jit
def factors(scales, zeros, place, inside, FORMAT: tl.constexpr, HAS_ZEROS: tl.constexpr):
    """(a, b) of the outputs at `place`, with w = f * a - b."""
    scale = tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
    if FORMAT == "fp8" or FORMAT == "table":
        return scale, scale * 0.0
    steps: tl.constexpr = 16.0 if FORMAT == "int4" else 256.0
    if HAS_ZEROS:
        zero = tl.load(zeros + place, mask=inside, other=0).to(tl.float32)
        return scale * steps, (zero + steps) * scale
    return scale * steps, scale * (steps * 1.5)


@triton.jit
def row_sums(
    x, words, scales, zeros, outputs, inside, split, K, stride, num_blocks, one,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, IS_EVEN: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x [K] times the weights of `outputs`, over blocks split * BLOCKS, ...: float32 [BLOCK_N].
    Each thread sums what it read; the threads are reduced once, at the end."""
    FIELDS: tl.constexpr = 8 if FORMAT == "int4" or FORMAT == "table" else 4
    WIDTH: tl.constexpr = FIELDS * 32
    PARTS: tl.constexpr = 1 if GROUP % WIDTH == 0 else FIELDS if WIDTH % GROUP else WIDTH // GROUP
    EACH: tl.constexpr = FIELDS // PARTS
    lanes = tl.arange(0, 32)
    if FORMAT == "table":
        table = tl.load(zeros + tl.arange(0, 16))
    total = tl.zeros([32, BLOCK_N], dtype=tl.float32)
    word = words + lanes[:, None].to(tl.int64) * stride + outputs[None, :]
    for step in tl.range(0, BLOCKS, num_stages=STAGES):
        block = split * BLOCKS + step
        there = inside & (tl.zeros([BLOCK_N], dtype=tl.int32) + block < num_blocks)
        held = tl.load(word + block.to(tl.int64) * 32 * stride, mask=there[None, :], other=0)
        values = x + block * WIDTH + lanes
        if FORMAT == "table":
            four = looked_up(held, table, 0)
        for part in tl.static_range(PARTS):
            # past the last block any group will do: its inputs are zeros
            group = (tl.minimum(block, num_blocks - 1) * WIDTH + part * EACH * 32) // GROUP
            a, b = factors(
                scales + group * stride, zeros + group * stride, outputs, inside, FORMAT, HAS_ZEROS
            )
            products = tl.zeros([32, BLOCK_N], dtype=tl.float32)
            sums = tl.zeros([32], dtype=tl.float32)
            for i in tl.static_range(EACH):
                field = part * EACH + i
                if IS_EVEN:
                    value = tl.load(values + field * 32).to(tl.float32)
                else:
                    own = block * WIDTH + field * 32 + lanes < K
                    value = tl.load(values + field * 32, mask=own, other=0.0).to(tl.float32)
                if FORMAT == "table":
                    if part * EACH + i == 4:
                        four = looked_up(held, table, 4)
                    products += four[(part * EACH + i) % 4] * value[:, None]
                else:
                    products += unpacked(held, one, field, FORMAT) * value[:, None]
                sums += value
            if FORMAT == "fp8" or FORMAT == "table":
                total += products * a[None, :]
            else:
                total += products * a[None, :] - sums[:, None] * b[None, :]
    return tl.sum(total, axis=0)


@triton.jit
def tile_sums(
    rows, own, words, scales, zeros, outputs, inside, split, K, stride, num_blocks, lanes,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, IS_EVEN: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    DTYPE: tl.constexpr, DOT_DTYPE: tl.constexpr,
):  # fmt: skip
    """The rows of activations at `rows` [BLOCK_M, 1] (those that are `own`) times the weights of
    `outputs`, rounded to DTYPE, over blocks split * BLOCKS, ...: float32 [BLOCK_M, BLOCK_N].

    Here the bits of 1.0 are a constant: with an argument the compiler takes plain weights through
    shared memory, where it now makes them in the registers that the tensor cores read.
    """
    FIELDS: tl.constexpr = 8 if FORMAT == "int4" or FORMAT == "table" else 4
    WIDTH: tl.constexpr = FIELDS * 32
    PARTS: tl.constexpr = 1 if GROUP % WIDTH == 0 else FIELDS if WIDTH % GROUP else WIDTH // GROUP
    EACH: tl.constexpr = FIELDS // PARTS
    if FORMAT == "table":
        table = tl.load(zeros + tl.arange(0, 16))
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    word = words + lanes[:, None].to(tl.int64) * stride + outputs[None, :]
    row = rows + lanes[None, :]
    for step in tl.range(0, BLOCKS, num_stages=STAGES):
        block = split * BLOCKS + step
        there = inside & (tl.zeros([BLOCK_N], dtype=tl.int32) + block < num_blocks)
        held = tl.load(word + block.to(tl.int64) * 32 * stride, mask=there[None, :], other=0)
        values = row + block * WIDTH
        if FORMAT == "table":
            four = looked_up(held, table, 0)
        for part in tl.static_range(PARTS):
            # past the last block any group will do: its inputs are zeros
            group = (tl.minimum(block, num_blocks - 1) * WIDTH + part * EACH * 32) // GROUP
            a, b = factors(
                scales + group * stride, zeros + group * stride, outputs, inside, FORMAT, HAS_ZEROS
            )
            for i in tl.static_range(EACH):
                field = part * EACH + i
                mask = own[:, None]
                if not IS_EVEN:
                    mask = mask & (block * WIDTH + field * 32 + lanes < K)[None, :]
                value = tl.load(values + field * 32, mask=mask, other=0.0)
                if FORMAT == "table":
                    if part * EACH + i == 4:
                        four = looked_up(held, table, 4)
                    plain = four[(part * EACH + i) % 4] * a[None, :]
                else:
                    plain = unpacked(held, 0x3F800000, field, FORMAT) * a[None, :]
                    if FORMAT != "fp8":
                        plain -= b[None, :]
                plain = plain.to(DTYPE)
                total = tl.dot(
                    value.to(DOT_DTYPE), plain.to(DOT_DTYPE), total, input_precision="ieee"
                )
    return total


@triton.jit
def one_row_kernel(
    x, words, scales, zeros, bias, out,
    N, K, stride, num_blocks, one,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_EVEN: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """x [K] times the weight: out [N], or parts of sums [splits, N] float32. Program (n, s) reads
    BLOCKS blocks of words of BLOCK_N outputs."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    inside = outputs < N
    result = row_sums(
        x, words, scales, zeros, outputs, inside, split, K, stride, num_blocks, one,
        FORMAT, GROUP, HAS_ZEROS, IS_EVEN, BLOCKS, BLOCK_N, STAGES,
    )  # fmt: skip
    if IS_SPLIT:
        tl.store(out + split * N + outputs, result, mask=inside)
    else:
        if HAS_BIAS:
            result += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + outputs, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def tile_kernel(
    x, words, scales, zeros, bias, out,
    M, N, K, x_stride, stride, num_blocks,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_EVEN: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, DOT_DTYPE: tl.constexpr,
):  # fmt: skip
    """x [M, K] times the weight: out [M, N], or parts of sums [splits, M, N] float32. Each weight
    is read once for BLOCK_M rows."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    inside = outputs < N
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    own = tokens < M
    total = tile_sums(
        x + tokens[:, None].to(tl.int64) * x_stride, own, words, scales, zeros, outputs, inside,
        split, K, stride, num_blocks, tl.arange(0, 32), FORMAT, GROUP, HAS_ZEROS, IS_EVEN, BLOCKS,
        BLOCK_M, BLOCK_N, STAGES, x.dtype.element_ty, DOT_DTYPE,
    )  # fmt: skip
    place = tokens[:, None].to(tl.int64) * N + outputs[None, :]
    written = own[:, None] & inside[None, :]
    if IS_SPLIT:
        tl.store(out + split.to(tl.int64) * M * N + place, total, mask=written)
    else:
        if HAS_BIAS:
            total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, total.to(out.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["rows"])
def join_kernel(
    parts, bias, out, rows, N,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """parts float32 [SPLITS, rows, N] added up in their order, and bias [N]: out [rows, N]."""
    row = tl.program_id(1).to(tl.int64)
    outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = outputs < N
    result = tl.zeros([BLOCK], dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        result += tl.load(parts + (split * rows + row) * N + outputs, mask=inside, other=0.0)
    if HAS_BIAS:
        result += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + outputs, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def plain_kernel(
    words, scales, zeros, out, start, count, K, stride, out_stride, one,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The weights of outputs start, ..., start + count - 1 as plain numbers: out [K, out_stride].
    Program (b, n) writes one block of inputs of BLOCK_N outputs."""
    FIELDS: tl.constexpr = 8 if FORMAT == "int4" or FORMAT == "table" else 4
    WIDTH: tl.constexpr = FIELDS * 32
    PARTS: tl.constexpr = 1 if GROUP % WIDTH == 0 else FIELDS if WIDTH % GROUP else WIDTH // GROUP
    EACH: tl.constexpr = FIELDS // PARTS
    block = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < count
    outputs = start + columns
    lanes = tl.arange(0, 32)
    if FORMAT == "table":
        table = tl.load(zeros + tl.arange(0, 16))
    rows = (block * 32 + lanes).to(tl.int64)
    held = tl.load(words + rows[:, None] * stride + outputs[None, :], mask=inside[None, :], other=0)
    if FORMAT == "table":
        four = looked_up(held, table, 0)
    for part in tl.static_range(PARTS):
        group = (block * WIDTH + part * EACH * 32) // GROUP
        a, b = factors(scales, zeros, group * stride + outputs, inside, FORMAT, HAS_ZEROS)
        for i in tl.static_range(EACH):
            field = part * EACH + i
            inputs = block * WIDTH + field * 32 + lanes
            if FORMAT == "table":
                if part * EACH + i == 4:
                    four = looked_up(held, table, 4)
                plain = four[(part * EACH + i) % 4] * a[None, :]
            else:
                plain = unpacked(held, one, field, FORMAT) * a[None, :]
                if FORMAT != "fp8":
                    plain -= b[None, :]
            tl.store(
                out + inputs[:, None].to(tl.int64) * out_stride + columns[None, :],
                plain.to(out.dtype.element_ty),
                mask=(inputs < K)[:, None] & inside[None, :],
            )


def dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """In which numbers a product on the tensor cores takes its operands. The interpreter computes
    bfloat16 wrongly (triton #11584)."""
    if is_interpreted():
        return tl.float32
    return {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}.get(dtype, tl.float32)


def join(parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [rows, N] = the sum of parts float32 [splits, rows, N] in their order, and bias [N]."""
    splits, rows, count = parts.shape
    grid = (triton.cdiv(count, 512), rows)
    join_kernel[grid](parts, bias, out, rows, count, splits, bias is not None, 512)


def one_row(x: Tensor, held: Packed, bias: Tensor | None, plan: Plan) -> Tensor:
    """x [1, in] @ weight^T + bias: [1, out] in x's dtype."""
    count, width = held.shape
    target = x.new_empty(1, count)
    out = target
    if plan.splits > 1:
        out = x.new_empty(plan.splits, 1, count, dtype=torch.float32)
    grid = (triton.cdiv(count, plan.block_n), plan.splits)
    one_row_kernel[grid](
        x, *held.tensors, _or(bias, x), out, count, width, held.stride, held.num_blocks, _ONE,
        held.format, held.group, held.has_zeros, bias is not None and plan.splits == 1,
        plan.splits > 1, held.is_even(plan.splits), triton.cdiv(held.num_blocks, plan.splits),
        plan.block_n, plan.stages, num_warps=plan.warps,
    )  # fmt: skip
    if plan.splits > 1:
        join(out, bias, target)
    return target


def tiled(x: Tensor, held: Packed, bias: Tensor | None, plan: Plan) -> Tensor:
    """x [M, in] @ weight^T + bias for a few M: [M, out] in x's dtype."""
    rows = len(x)
    count, width = held.shape
    target = x.new_empty(rows, count)
    out = target
    if plan.splits > 1:
        out = x.new_empty(plan.splits, rows, count, dtype=torch.float32)
    block_m = min(_MOST_ROWS, max(16, next_power_of_2(rows)))
    grid = (triton.cdiv(count, plan.block_n), plan.splits, triton.cdiv(rows, block_m))
    tile_kernel[grid](
        x, *held.tensors, _or(bias, x), out, rows, count, width, x.stride(0), held.stride,
        held.num_blocks, held.format, held.group, held.has_zeros,
        bias is not None and plan.splits == 1, plan.splits > 1, held.is_even(plan.splits),
        triton.cdiv(held.num_blocks, plan.splits), block_m, plan.block_n,
        plan.stages, dot_dtype(x.dtype), num_warps=plan.warps,
    )  # fmt: skip
    if plan.splits > 1:
        join(out, bias, target)
    return target


def make_plain(held: Packed, start: int, out: Tensor) -> None:
    """out [in, count]: the weights of outputs start, ..., start + count - 1."""
    width, count = out.shape
    grid = (held.num_blocks, triton.cdiv(count, 64))
    plain_kernel[grid](
        *held.tensors, out, start, count, width, held.stride, out.stride(0), _ONE,
        held.format, held.group, held.has_zeros, 64,
    )  # fmt: skip


def _or(bias: Tensor | None, other: Tensor) -> Tensor:
    return other if bias is None else bias
