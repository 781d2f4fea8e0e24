"""Paged attention in Triton: one kernel over a ragged batch, and one that joins split sequences.

The query heads of a group attend to the same keys, so they are rows of one product with them:

    row of a request   = token * GROUP + head in its group
    program            = a block of rows of a request x one key head

Requests of many tokens are cut along their rows alone: a program walks over all keys that its rows
can see, without masks but for the last tiles and those at the edge of a window. Requests of few
tokens (decoded ones, drafts that are verified) are cut along their keys as well:

    keys of a request  |  split 0  |  split 1  |  split 2  |  split 3  |  ...
    lane 0 of 2              x                       x
    lane 1 of 2                          x                       x

How many lanes share the splits depends on how much else there is to do. Where the splits lie
depends on the length of the sequence alone, and their sums are always added from left to right by
the same operations, in the registers of an only lane or by `join_splits`: how a token is computed
does not depend on the other requests of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.attention_parts import (
    LOG2_E,
    NOTHING,
    decoded,
    finished,
    fold,
    load_queries,
    load_tile,
    mask_of,
    own_item_of,
    rows_of,
    split_size,
    store_results,
)


@triton.jit
def _attend(
    top, total, acc, q, positions,
    keys, values, key_scales, value_scales, table, head,
    first_tile, end_tile, first_key, end_key, scale, softcap, window,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the keys of tiles first_tile to end_tile, BLOCK_N each, to top, total and acc.

    MASKED: not all rows see all keys of these tiles. Keys before first_key, which no row sees, and
    from end_key on, which do not exist, are not even loaded: NaN there would get into the result
    through a weight of zero. WIDE: the cache has 2^31 elements or more.
    """
    key_dims, value_dims = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    places = tl.arange(0, BLOCK_N)
    for tile in range(first_tile, end_tile):
        key = tile * BLOCK_N + places
        exists = (key >= first_key) & (key < end_key)
        block = load_tile(table + key // BLOCK_SIZE, exists, MASKED)
        if WIDE:
            block = block.to(tl.int64)
        rows = (block * NUM_KV_HEADS + head) * BLOCK_SIZE + key % BLOCK_SIZE

        mask = mask_of(exists[None, :], (key_dims < KEY_DIM)[:, None], MASKED)
        pointers = keys + rows[None, :] * KEY_DIM + key_dims[:, None]
        k = load_tile(pointers, mask, MASKED or KEY_DIM != KEY_WIDTH)
        scores = tl.dot(q, decoded(k, KEY_FORM, KEY_DTYPE), input_precision=PRECISION)
        if KEY_FORM == "plain":
            scores = scores * scale
        else:
            factors = load_tile(key_scales + rows, exists, MASKED).to(tl.float32)
            scores = scores * (factors * scale)[None, :]
        if HAS_SOFTCAP:  # softcap * tanh(scores / softcap)
            power = tl.exp2(scores * (2.0 * LOG2_E / softcap))
            scores = (softcap * LOG2_E) * (1.0 - 2.0 / (1.0 + power))
        if MASKED:
            seen = key[None, :] <= positions[:, None]
            if HAS_WINDOW:
                seen = seen & (key[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, NOTHING)

        both = tl.maximum(top, tl.max(scores, 1))
        base = both
        if MASKED:
            base = tl.where(both == NOTHING, 0.0, both)
        weights = tl.exp2(scores - base[:, None])
        factor = tl.exp2(top - base)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        top = both

        mask = mask_of(exists[:, None], (value_dims < VALUE_DIM)[None, :], MASKED)
        pointers = values + rows[:, None] * VALUE_DIM + value_dims[None, :]
        v = load_tile(pointers, mask, MASKED or VALUE_DIM != VALUE_WIDTH)
        if VALUE_FORM != "plain":
            factors = load_tile(value_scales + rows, exists, MASKED).to(tl.float32)
            weights = weights * factors[None, :]
        acc = tl.dot(
            weights.to(VALUE_DTYPE), decoded(v, VALUE_FORM, VALUE_DTYPE), acc,
            input_precision=PRECISION,
        )  # fmt: skip
    return top, total, acc


@triton.jit(do_not_specialize=["num_requests", "lanes", "num_splits", "window"])
def attend_pages(
    q, out, sums, tops, totals, keys, values, key_scales, value_scales, sinks,
    query_start_loc, seq_lens, block_tables, table_stride,
    stride_qt, stride_qh, num_requests, lanes, num_splits, scale, softcap, window,
    HAS_FEW: tl.constexpr, HAS_MANY: tl.constexpr, ONE_BLOCK: tl.constexpr, JOINED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WIDE: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    FEW_TOKENS: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_M_FEW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_N_FEW: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """Grid (work items, key heads). A request of few tokens has an item for each block of its rows
    and each lane; another one for each block of its rows.

    ONE_BLOCK: every request is of few tokens, which fill one block of rows. JOINED: sums of splits
    are written to `sums`, `tops` and `totals` for `join_splits`, not results.
    """
    item, head = tl.program_id(0), tl.program_id(1)
    if ONE_BLOCK:
        request, own_item = item // lanes, item % lanes
        few_before = tl.load(query_start_loc + request)
    else:
        request, own_item, few_before = own_item_of(
            query_start_loc, num_requests, item, lanes,
            GROUP, FEW_TOKENS, BLOCK_M, BLOCK_M_FEW, REQUESTS,
        )  # fmt: skip
        if request >= num_requests:
            return
    start = tl.load(query_start_loc + request)
    tokens = tl.load(query_start_loc + request + 1) - start
    seq_len = tl.load(seq_lens + request)
    table = block_tables + request.to(tl.int64) * tl.load(table_stride)
    if HAS_FEW and ((not HAS_MANY) or tokens <= FEW_TOKENS):
        _attend_few(
            q, out, sums, tops, totals, keys, values, key_scales, value_scales, sinks,
            table, start, tokens, seq_len, own_item, few_before, head,
            stride_qt, stride_qh, lanes, num_splits, scale, softcap, window,
            JOINED, HAS_WINDOW, HAS_SOFTCAP, HAS_SINKS, KEY_FORM, VALUE_FORM,
            KEY_DTYPE, VALUE_DTYPE, PRECISION, NUM_KV_HEADS, GROUP, BLOCK_SIZE, WIDE,
            KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH,
            SPLIT, MAX_SPLITS, BLOCK_M_FEW, BLOCK_N_FEW,
        )  # fmt: skip
    if HAS_MANY and ((not HAS_FEW) or tokens > FEW_TOKENS):
        _attend_many(
            q, out, keys, values, key_scales, value_scales, sinks,
            table, start, tokens, seq_len, own_item, head,
            stride_qt, stride_qh, scale, softcap, window,
            HAS_WINDOW, HAS_SOFTCAP, HAS_SINKS, KEY_FORM, VALUE_FORM,
            KEY_DTYPE, VALUE_DTYPE, PRECISION, NUM_KV_HEADS, GROUP, BLOCK_SIZE, WIDE,
            KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _attend_many(
    q, out, keys, values, key_scales, value_scales, sinks,
    table, start, tokens, seq_len, own_item, head,
    stride_qt, stride_qh, scale, softcap, window,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WIDE: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # the last rows see the most keys: they begin first, so that no program works on alone
    block = (tokens * GROUP + BLOCK_M - 1) // BLOCK_M - 1 - own_item
    token, own_head, exists, positions, first, last = rows_of(
        block, tokens, seq_len, GROUP, BLOCK_M
    )
    heads = head * GROUP + own_head
    queries = load_queries(
        q, start, token, heads, exists, stride_qt, stride_qh, KEY_DTYPE, KEY_DIM, KEY_WIDTH
    )
    top = tl.full([BLOCK_M], NOTHING, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, VALUE_WIDTH], tl.float32)
    end_key = last + 1
    end = (end_key + BLOCK_N - 1) // BLOCK_N
    seen_by_all = (first + 1) // BLOCK_N  # tiles below lie before the first row
    first_key, begin = 0, 0
    if HAS_WINDOW:
        first_key = tl.maximum(first - window + 1, 0)
        begin = first_key // BLOCK_N
        # tiles from here on lie in the window of the last row
        inner = (tl.maximum(last - window + 1, 0) + BLOCK_N - 1) // BLOCK_N
        inner = tl.minimum(inner, end)
        top, total, acc = _attend(
            top, total, acc, queries, positions,
            keys, values, key_scales, value_scales, table, head,
            begin, inner, first_key, end_key, scale, softcap, window,
            HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
            NUM_KV_HEADS, BLOCK_SIZE, WIDE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH,
            BLOCK_N, True,
        )  # fmt: skip
        begin = tl.maximum(begin, inner)
    top, total, acc = _attend(
        top, total, acc, queries, positions,
        keys, values, key_scales, value_scales, table, head,
        begin, seen_by_all, first_key, end_key, scale, softcap, window,
        HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
        NUM_KV_HEADS, BLOCK_SIZE, WIDE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, False,
    )  # fmt: skip
    top, total, acc = _attend(
        top, total, acc, queries, positions,
        keys, values, key_scales, value_scales, table, head,
        tl.maximum(begin, seen_by_all), end, first_key, end_key, scale, softcap, window,
        HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
        NUM_KV_HEADS, BLOCK_SIZE, WIDE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, True,
    )  # fmt: skip
    result = finished(top, total, acc, sinks, heads, exists, HAS_SINKS)
    store_results(
        out, result, start, token, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM, VALUE_WIDTH
    )


@triton.jit
def _attend_few(
    q, out, sums, tops, totals, keys, values, key_scales, value_scales, sinks,
    table, start, tokens, seq_len, own_item, few_before, head,
    stride_qt, stride_qh, lanes, num_splits, scale, softcap, window,
    JOINED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WIDE: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    token, own_head, exists, positions, first, last = rows_of(
        own_item // lanes, tokens, seq_len, GROUP, BLOCK_M
    )
    heads = head * GROUP + own_head
    size = split_size(seq_len, SPLIT, MAX_SPLITS)
    end_key = tl.minimum(last + 1, seq_len)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first - window + 1, 0)
    first_split = first_key // size + own_item % lanes
    end_split = (end_key + size - 1) // size
    queries = load_queries(
        q, start, token, heads, exists, stride_qt, stride_qh, KEY_DTYPE, KEY_DIM, KEY_WIDTH
    )
    all_top = tl.full([BLOCK_M], NOTHING, tl.float32)
    all_total = tl.zeros([BLOCK_M], tl.float32)
    all_acc = tl.zeros([BLOCK_M, VALUE_WIDTH], tl.float32)
    for split in range(first_split, end_split, lanes):
        begin = tl.maximum(split * size, first_key) // BLOCK_N
        end = (tl.minimum(split * size + size, end_key) + BLOCK_N - 1) // BLOCK_N
        top = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, VALUE_WIDTH], tl.float32)
        top, total, acc = _attend(
            top, total, acc, queries, positions,
            keys, values, key_scales, value_scales, table, head,
            begin, end, first_key, end_key, scale, softcap, window,
            HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
            NUM_KV_HEADS, BLOCK_SIZE, WIDE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH,
            BLOCK_N, True,
        )  # fmt: skip
        if JOINED:
            dims = tl.arange(0, VALUE_WIDTH)
            row = (few_before + token).to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
            row = row * num_splits + split
            tl.store(tops + row, top, mask=exists)
            tl.store(totals + row, total, mask=exists)
            mask = exists[:, None] & (dims < VALUE_DIM)[None, :]
            tl.store(sums + row[:, None] * VALUE_DIM + dims[None, :], acc, mask=mask)
        else:
            all_top, all_total, all_acc = fold(all_top, all_total, all_acc, top, total, acc)
    if not JOINED:
        result = finished(all_top, all_total, all_acc, sinks, heads, exists, HAS_SINKS)
        store_results(
            out, result, start, token, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM, VALUE_WIDTH
        )
