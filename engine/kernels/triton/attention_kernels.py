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
    first_seen,
    fold,
    load_queries,
    load_tile,
    mask_of,
    no_sums,
    own_item_of,
    rows_of,
    split_size,
    store_results,
)


@triton.jit
def _attend(
    top, total, acc, q, positions, cache, table, head, first_tile, end_tile, first_key, end_key,
    variant, C: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the keys of tiles first_tile to end_tile, BLOCK_N each, to top, total and acc.

    MASKED: not all rows see all keys of these tiles. Keys before first_key, which no row sees, and
    from end_key on, which do not exist, are not even loaded: NaN there would get into the result
    through a weight of zero.
    """
    keys, values, key_scales, value_scales = cache
    scale, softcap, most_keys = variant
    key_dims, value_dims = tl.arange(0, C.key_width), tl.arange(0, C.value_width)
    places = tl.arange(0, BLOCK_N)
    for tile in range(first_tile, end_tile):
        key = tile * BLOCK_N + places
        exists = (key >= first_key) & (key < end_key)
        block = load_tile(table + key // C.block_size, exists, MASKED)
        if C.wide:
            block = block.to(tl.int64)
        rows = (block * C.num_kv_heads + head) * C.block_size + key % C.block_size

        mask = mask_of(exists[None, :], (key_dims < C.key_dim)[:, None], MASKED)
        pointers = keys + rows[None, :] * C.key_dim + key_dims[:, None]
        k = load_tile(pointers, mask, MASKED or C.key_dim != C.key_width)
        scores = tl.dot(q, decoded(k, C.key_form, C.key_dtype), input_precision=C.precision)
        if C.key_form == "plain":
            scores = scores * scale
        else:
            factors = load_tile(key_scales + rows, exists, MASKED).to(tl.float32)
            scores = scores * (factors * scale)[None, :]
        if C.has_softcap:  # softcap * tanh(scores / softcap)
            power = tl.exp2(scores * (2.0 * LOG2_E / softcap))
            scores = (softcap * LOG2_E) * (1.0 - 2.0 / (1.0 + power))
        if MASKED:
            seen = key[None, :] <= positions[:, None]
            if C.has_window or C.has_chunks:
                seen = seen & (key[None, :] >= first_seen(positions, most_keys, C)[:, None])
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

        mask = mask_of(exists[:, None], (value_dims < C.value_dim)[None, :], MASKED)
        pointers = values + rows[:, None] * C.value_dim + value_dims[None, :]
        v = load_tile(pointers, mask, MASKED or C.value_dim != C.value_width)
        if C.value_form != "plain":
            factors = load_tile(value_scales + rows, exists, MASKED).to(tl.float32)
            weights = weights * factors[None, :]
        acc = tl.dot(
            weights.to(C.value_dtype), decoded(v, C.value_form, C.value_dtype), acc,
            input_precision=C.precision,
        )  # fmt: skip
    return top, total, acc


@triton.jit(do_not_specialize=["num_requests", "lanes", "num_splits", "most_keys"])
def attend_pages(
    q, out, sums, tops, totals, keys, values, key_scales, value_scales, sinks,
    query_start_loc, seq_lens, block_tables, table_stride,
    stride_qt, stride_qh, num_requests, lanes, num_splits, scale, softcap, most_keys,
    C: tl.constexpr, HAS_FEW: tl.constexpr, HAS_MANY: tl.constexpr, ONE_BLOCK: tl.constexpr,
    JOINED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_M_FEW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_N_FEW: tl.constexpr,
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
            query_start_loc, num_requests, item, lanes, C, BLOCK_M, BLOCK_M_FEW
        )
        if request >= num_requests:
            return
    start = tl.load(query_start_loc + request)
    tokens = tl.load(query_start_loc + request + 1) - start
    seq_len = tl.load(seq_lens + request)
    table = block_tables + request.to(tl.int64) * tl.load(table_stride)
    cache, variant = (keys, values, key_scales, value_scales), (scale, softcap, most_keys)
    if HAS_FEW and ((not HAS_MANY) or tokens <= C.few_tokens):
        _attend_few(
            q, out, (sums, tops, totals), cache, sinks, table, start, tokens, seq_len, own_item,
            few_before, head, stride_qt, stride_qh, lanes, num_splits, variant,
            C, JOINED, BLOCK_M_FEW, BLOCK_N_FEW,
        )  # fmt: skip
    if HAS_MANY and ((not HAS_FEW) or tokens > C.few_tokens):
        _attend_many(
            q, out, cache, sinks, table, start, tokens, seq_len, own_item, head,
            stride_qt, stride_qh, variant, C, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _attend_many(
    q, out, cache, sinks, table, start, tokens, seq_len, own_item, head,
    stride_qt, stride_qh, variant, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # the last rows see the most keys: they begin first, so that no program works on alone
    block = (tokens * C.group + BLOCK_M - 1) // BLOCK_M - 1 - own_item
    token, heads, exists, positions, first, last = rows_of(
        block, tokens, seq_len, head, C.group, BLOCK_M
    )
    queries = load_queries(q, start, token, heads, exists, stride_qt, stride_qh, C)
    top, total, acc = no_sums(BLOCK_M, C.value_width)
    end_key = last + 1
    end = (end_key + BLOCK_N - 1) // BLOCK_N
    seen_by_all = (first + 1) // BLOCK_N  # tiles below are before the first row
    first_key, begin, inner = 0, 0, 0
    if C.has_window or C.has_chunks:
        first_key = tl.maximum(first_seen(first, variant[2], C), 0)
        begin = first_key // BLOCK_N
        # tiles from here on are in the window or chunk of the last row
        inner = (tl.maximum(first_seen(last, variant[2], C), 0) + BLOCK_N - 1) // BLOCK_N
        inner = tl.minimum(inner, end)
        top, total, acc = _attend(
            top, total, acc, queries, positions, cache, table, head,
            begin, inner, first_key, end_key, variant, C, BLOCK_N, True,
        )  # fmt: skip
        begin = tl.maximum(begin, inner)
    top, total, acc = _attend(
        top, total, acc, queries, positions, cache, table, head,
        begin, seen_by_all, first_key, end_key, variant, C, BLOCK_N, False,
    )  # fmt: skip
    top, total, acc = _attend(
        top, total, acc, queries, positions, cache, table, head,
        tl.maximum(begin, seen_by_all), end, first_key, end_key, variant, C, BLOCK_N, True,
    )  # fmt: skip
    result = finished(top, total, acc, sinks, heads, exists, C.has_sinks)
    store_results(out, result, start, token, heads, exists, C)


@triton.jit
def _attend_few(
    q, out, parts, cache, sinks, table, start, tokens, seq_len, own_item, few_before, head,
    stride_qt, stride_qh, lanes, num_splits, variant,
    C: tl.constexpr, JOINED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    token, heads, exists, positions, first, last = rows_of(
        own_item // lanes, tokens, seq_len, head, C.group, BLOCK_M
    )
    size = split_size(seq_len, C.split, C.max_splits)
    end_key = tl.minimum(last + 1, seq_len)
    first_key = 0
    if C.has_window or C.has_chunks:
        first_key = tl.maximum(first_seen(first, variant[2], C), 0)
    first_split = first_key // size + own_item % lanes
    end_split = (end_key + size - 1) // size
    queries = load_queries(q, start, token, heads, exists, stride_qt, stride_qh, C)
    all_top, all_total, all_acc = no_sums(BLOCK_M, C.value_width)
    for split in range(first_split, end_split, lanes):
        begin = tl.maximum(split * size, first_key) // BLOCK_N
        end = (tl.minimum(split * size + size, end_key) + BLOCK_N - 1) // BLOCK_N
        top, total, acc = no_sums(BLOCK_M, C.value_width)
        top, total, acc = _attend(
            top, total, acc, queries, positions, cache, table, head,
            begin, end, first_key, end_key, variant, C, BLOCK_N, True,
        )  # fmt: skip
        if JOINED:
            sums, tops, totals = parts
            dims = tl.arange(0, C.value_width)
            row = (few_before + token).to(tl.int64) * (C.num_kv_heads * C.group) + heads
            row = row * num_splits + split
            tl.store(tops + row, top, mask=exists)
            tl.store(totals + row, total, mask=exists)
            mask = exists[:, None] & (dims < C.value_dim)[None, :]
            tl.store(sums + row[:, None] * C.value_dim + dims[None, :], acc, mask=mask)
        else:
            all_top, all_total, all_acc = fold(all_top, all_total, all_acc, top, total, acc)
    if not JOINED:
        result = finished(all_top, all_total, all_acc, sinks, heads, exists, C.has_sinks)
        store_results(out, result, start, token, heads, exists, C)
