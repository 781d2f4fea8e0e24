"""Functions that the kernels of paged attention share: loading tiles, merging sums, row indices."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(float("-inf"))


@dataclass(frozen=True, slots=True)
class Constants:
    """Compile-time constants of the kernels. Of has_window and has_chunks at most one. Forms and
    dtypes: see `decoded`. dims: head sizes; widths: the same padded to the tile. wide: the cache
    has 2^31 elements or more."""

    has_window: bool
    has_chunks: bool
    has_softcap: bool
    has_sinks: bool
    key_form: str
    value_form: str
    key_dtype: tl.dtype
    value_dtype: tl.dtype
    precision: str
    num_kv_heads: int
    group: int
    block_size: int
    wide: bool
    key_dim: int
    value_dim: int
    key_width: int
    value_width: int
    few_tokens: int
    split: int
    max_splits: int
    requests: int


@triton.jit
def first_seen(positions, most_keys, C: tl.constexpr):
    """Position of the first key that tokens at `positions` see; may be below 0."""
    if C.has_chunks:
        return positions // most_keys * most_keys
    else:
        return positions - most_keys + 1


@triton.jit
def load_tile(pointers, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=mask, other=0)
    else:
        return tl.load(pointers)


@triton.jit
def mask_of(exists, is_real, MASKED: tl.constexpr):
    if MASKED:
        return exists & is_real
    else:
        return is_real


@triton.jit
def decoded(tile, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """A tile of the cache as DTYPE. FORM: "plain", "int8", or how fp8 is read: "fp8" by the
    device's own conversion, "fp8_shift" by shifts, where it has none."""
    if FORM == "fp8_shift":
        # the bits of e4m3, its sign extended, where float16 has sign, exponent and fraction: the
        # same number but for the bias of the exponent, 7 in place of 15
        bits = (tile.to(tl.int16) << 7) & -16512  # 0xBF80
        tile = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif FORM == "fp8":
        tile = tile.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return tile.to(DTYPE)


@triton.jit
def no_sums(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Of no keys: largest score, sum of weights, weighted sum of values."""
    top = tl.full([ROWS], NOTHING, tl.float32)
    return top, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def fold(top, total, acc, new_top, new_total, new_acc):
    """Two parts of the keys together."""
    both = tl.maximum(top, new_top)
    base = tl.where(both == NOTHING, 0.0, both)
    left, right = tl.exp2(top - base), tl.exp2(new_top - base)
    acc = acc * left[:, None] + new_acc * right[:, None]
    return both, total * left + new_total * right, acc


@triton.jit
def finished(top, total, acc, sinks, heads, inside, HAS_SINKS: tl.constexpr):
    """The result of rows whose sums are complete; zeros where there was no key at all."""
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        both = tl.maximum(top, sink)
        factor = tl.exp2(top - both)
        total = total * factor + tl.exp2(sink - both)
        acc = acc * factor[:, None]
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def own_item_of(
    query_start_loc, num_requests, item, lanes,
    C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_M_FEW: tl.constexpr,
):  # fmt: skip
    """Which request the work item is of, its place among that request's, and the number of tokens
    of requests of few before it. The request is num_requests or more where there is no such item.
    """
    index = tl.arange(0, C.requests)
    inside = index < num_requests
    starts = tl.load(query_start_loc + index, mask=inside, other=0)
    tokens = tl.load(query_start_loc + index + 1, mask=inside, other=0) - starts
    few = tokens <= C.few_tokens
    rows = tokens * C.group
    items = tl.where(
        few, (rows + BLOCK_M_FEW - 1) // BLOCK_M_FEW * lanes, (rows + BLOCK_M - 1) // BLOCK_M
    )
    request = tl.sum((tl.cumsum(items, 0) <= item).to(tl.int32), 0)
    before = index < request
    own_item = item - tl.sum(tl.where(before, items, 0), 0)
    few_before = tl.sum(tl.where(before & few, tokens, 0), 0)
    return request, own_item, few_before


@triton.jit
def split_size(seq_len, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Keys of a split: SPLIT, or for long sequences as many times SPLIT as make MAX_SPLITS."""
    whole = SPLIT * MAX_SPLITS
    return tl.maximum((seq_len + whole - 1) // whole, 1) * SPLIT


@triton.jit
def rows_of(block, tokens, seq_len, head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The rows of a block: token and head of each, whether it exists, its position; then the first
    and the last position. Rows that do not exist look like the last token."""
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    token = tl.minimum(row // GROUP, tokens - 1)
    before = seq_len - tokens
    first = before + block * BLOCK_M // GROUP
    last = before + tl.minimum((block * BLOCK_M + BLOCK_M - 1) // GROUP, tokens - 1)
    heads = head * GROUP + row % GROUP
    return token, heads, row < tokens * GROUP, before + token, first, last


@triton.jit
def load_queries(q, start, token, heads, exists, stride_qt, stride_qh, C: tl.constexpr):
    dims = tl.arange(0, C.key_width)
    pointers = q + (start + token).to(tl.int64)[:, None] * stride_qt + heads[:, None] * stride_qh
    mask = exists[:, None] & (dims < C.key_dim)[None, :]
    return tl.load(pointers + dims[None, :], mask=mask, other=0.0).to(C.key_dtype)


@triton.jit
def store_results(out, result, start, token, heads, exists, C: tl.constexpr):
    dims = tl.arange(0, C.value_width)
    rows = (start + token).to(tl.int64) * (C.num_kv_heads * C.group) + heads
    mask = exists[:, None] & (dims < C.value_dim)[None, :]
    pointers = out + rows[:, None] * C.value_dim + dims[None, :]
    tl.store(pointers, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_requests", "num_splits", "most_keys"])
def join_splits(
    out, sums, tops, totals, sinks, query_start_loc, seq_lens,
    num_requests, num_splits, most_keys,
    C: tl.constexpr, ONE_TOKEN: tl.constexpr, GROUP_WIDTH: tl.constexpr,
):  # fmt: skip
    """Grid (tokens of requests of few tokens, key heads): the results of these tokens from the sums
    of their splits. ONE_TOKEN: every request computes one."""
    few_token, head = tl.program_id(0), tl.program_id(1)
    if ONE_TOKEN:
        request, token = few_token, 0
    else:
        index = tl.arange(0, C.requests)
        inside = index < num_requests
        starts = tl.load(query_start_loc + index, mask=inside, other=0)
        counts = tl.load(query_start_loc + index + 1, mask=inside, other=0) - starts
        counts = tl.where(counts <= C.few_tokens, counts, 0)
        request = tl.sum((tl.cumsum(counts, 0) <= few_token).to(tl.int32), 0)
        if request >= num_requests:
            return
        token = few_token - tl.sum(tl.where(index < request, counts, 0), 0)
    start = tl.load(query_start_loc + request)
    tokens = tl.load(query_start_loc + request + 1) - start
    seq_len = tl.load(seq_lens + request)
    position = seq_len - tokens + token
    size = split_size(seq_len, C.split, C.max_splits)
    first_key = 0
    if C.has_window or C.has_chunks:
        first_key = tl.maximum(first_seen(position, most_keys, C), 0)

    own_head, dims = tl.arange(0, GROUP_WIDTH), tl.arange(0, C.value_width)
    exists = own_head < C.group
    heads = head * C.group + own_head
    rows = (few_token.to(tl.int64) * (C.num_kv_heads * C.group) + heads) * num_splits
    mask = exists[:, None] & (dims < C.value_dim)[None, :]
    top, total, acc = no_sums(GROUP_WIDTH, C.value_width)
    end_split = (position + size) // size
    for split in range(first_key // size, end_split, 4):
        for ahead in tl.static_range(4):  # their loads overlap
            row = rows + split + ahead
            # adding an absent part changes nothing
            is_there = exists & (own_head * 0 + split + ahead < end_split)
            pointers = sums + row[:, None] * C.value_dim + dims[None, :]
            top, total, acc = fold(
                top, total, acc,
                tl.load(tops + row, mask=is_there, other=NOTHING),
                tl.load(totals + row, mask=is_there, other=0.0),
                tl.load(pointers, mask=mask & is_there[:, None], other=0.0),
            )  # fmt: skip
    result = finished(top, total, acc, sinks, heads, exists, C.has_sinks)
    store_results(out, result, start, token + own_head * 0, heads, exists, C)
