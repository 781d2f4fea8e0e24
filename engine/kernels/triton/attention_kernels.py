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

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def _load(pointers, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=mask, other=0)
    else:
        return tl.load(pointers)


@triton.jit
def _mask(exists, is_real, MASKED: tl.constexpr):
    if MASKED:
        return exists & is_real
    else:
        return is_real


@triton.jit
def _decoded(tile, FORM: tl.constexpr, DTYPE: tl.constexpr):
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
def _fold(top, total, acc, new_top, new_total, new_acc):
    """Two parts of the keys together: largest score, sum of weights, weighted sum of values."""
    both = tl.maximum(top, new_top)
    base = tl.where(both == NOTHING, 0.0, both)
    left, right = tl.exp2(top - base), tl.exp2(new_top - base)
    acc = acc * left[:, None] + new_acc * right[:, None]
    return both, total * left + new_total * right, acc


@triton.jit
def _finished(top, total, acc, sinks, heads, inside, HAS_SINKS: tl.constexpr):
    """The result of rows whose sums are complete; zeros where there was no key at all."""
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        both = tl.maximum(top, sink)
        factor = tl.exp2(top - both)
        total = total * factor + tl.exp2(sink - both)
        acc = acc * factor[:, None]
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _attend(
    top, total, acc, q, positions,
    keys, values, key_scales, value_scales, table, head,
    first_tile, end_tile, first_key, end_key, scale, softcap, window,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the keys of tiles first_tile to end_tile, BLOCK_N each, to top, total and acc.

    MASKED: not all rows see all keys of these tiles. Keys before first_key, which no row sees, and
    from end_key on, which do not exist, are not even loaded: NaN there would get into the result
    through a weight of zero.
    """
    key_dims, value_dims = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    places = tl.arange(0, BLOCK_N)
    for tile in range(first_tile, end_tile):
        key = tile * BLOCK_N + places
        exists = (key >= first_key) & (key < end_key)
        block = _load(table + key // BLOCK_SIZE, exists, MASKED).to(tl.int64)
        rows = (block * NUM_KV_HEADS + head) * BLOCK_SIZE + key % BLOCK_SIZE

        mask = _mask(exists[None, :], (key_dims < KEY_DIM)[:, None], MASKED)
        pointers = keys + rows[None, :] * KEY_DIM + key_dims[:, None]
        k = _load(pointers, mask, MASKED or KEY_DIM != KEY_WIDTH)
        scores = tl.dot(q, _decoded(k, KEY_FORM, KEY_DTYPE), input_precision=PRECISION)
        if KEY_FORM == "plain":
            scores = scores * scale
        else:
            factors = _load(key_scales + rows, exists, MASKED).to(tl.float32)
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

        mask = _mask(exists[:, None], (value_dims < VALUE_DIM)[None, :], MASKED)
        pointers = values + rows[:, None] * VALUE_DIM + value_dims[None, :]
        v = _load(pointers, mask, MASKED or VALUE_DIM != VALUE_WIDTH)
        if VALUE_FORM != "plain":
            factors = _load(value_scales + rows, exists, MASKED).to(tl.float32)
            weights = weights * factors[None, :]
        acc = tl.dot(
            weights.to(VALUE_DTYPE), _decoded(v, VALUE_FORM, VALUE_DTYPE), acc,
            input_precision=PRECISION,
        )  # fmt: skip
    return top, total, acc


@triton.jit
def _own_item(
    query_start_loc, num_requests, item, lanes,
    GROUP: tl.constexpr, FEW_TOKENS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_M_FEW: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """Which request the work item is of, its place among that request's, whether the request is of
    few tokens, and the number of tokens of such requests before it. The request is num_requests or
    more where there is no such item."""
    index = tl.arange(0, REQUESTS)
    inside = index < num_requests
    starts = tl.load(query_start_loc + index, mask=inside, other=0)
    tokens = tl.load(query_start_loc + index + 1, mask=inside, other=0) - starts
    few = tokens <= FEW_TOKENS
    rows = tokens * GROUP
    items = tl.where(
        few, (rows + BLOCK_M_FEW - 1) // BLOCK_M_FEW * lanes, (rows + BLOCK_M - 1) // BLOCK_M
    )
    request = tl.sum((tl.cumsum(items, 0) <= item).to(tl.int32), 0)
    before = index < request
    own_item = item - tl.sum(tl.where(before, items, 0), 0)
    few_before = tl.sum(tl.where(before & few, tokens, 0), 0)
    return request, own_item, few_before


@triton.jit
def _split_size(seq_len, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Keys of a split: SPLIT, or for long sequences as many times SPLIT as make MAX_SPLITS."""
    whole = SPLIT * MAX_SPLITS
    return tl.maximum((seq_len + whole - 1) // whole, 1) * SPLIT


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
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
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
        request, own_item, few_before = _own_item(
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
            KEY_DTYPE, VALUE_DTYPE, PRECISION, NUM_KV_HEADS, GROUP, BLOCK_SIZE,
            KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH,
            SPLIT, MAX_SPLITS, BLOCK_M_FEW, BLOCK_N_FEW,
        )  # fmt: skip
    if HAS_MANY and ((not HAS_FEW) or tokens > FEW_TOKENS):
        _attend_many(
            q, out, keys, values, key_scales, value_scales, sinks,
            table, start, tokens, seq_len, own_item, head,
            stride_qt, stride_qh, scale, softcap, window,
            HAS_WINDOW, HAS_SOFTCAP, HAS_SINKS, KEY_FORM, VALUE_FORM,
            KEY_DTYPE, VALUE_DTYPE, PRECISION, NUM_KV_HEADS, GROUP, BLOCK_SIZE,
            KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _rows_of(block, tokens, seq_len, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The rows of a block: token and head in the group of each, whether it exists, its position;
    then the first and the last position. Rows that do not exist look like the last token."""
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    token = tl.minimum(row // GROUP, tokens - 1)
    before = seq_len - tokens
    first = before + block * BLOCK_M // GROUP
    last = before + tl.minimum((block * BLOCK_M + BLOCK_M - 1) // GROUP, tokens - 1)
    return token, row % GROUP, row < tokens * GROUP, before + token, first, last


@triton.jit
def _queries(
    q, start, token, heads, exists, stride_qt, stride_qh,
    DTYPE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, WIDTH)
    pointers = q + (start + token).to(tl.int64)[:, None] * stride_qt + heads[:, None] * stride_qh
    mask = exists[:, None] & (dims < DIM)[None, :]
    return tl.load(pointers + dims[None, :], mask=mask, other=0.0).to(DTYPE)


@triton.jit
def _store(
    out, result, start, token, heads, exists,
    NUM_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, WIDTH)
    rows = (start + token).to(tl.int64) * NUM_HEADS + heads
    mask = exists[:, None] & (dims < DIM)[None, :]
    tl.store(
        out + rows[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=mask
    )


@triton.jit
def _attend_many(
    q, out, keys, values, key_scales, value_scales, sinks,
    table, start, tokens, seq_len, own_item, head,
    stride_qt, stride_qh, scale, softcap, window,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # the last rows see the most keys: they begin first, so that no program works on alone
    block = (tokens * GROUP + BLOCK_M - 1) // BLOCK_M - 1 - own_item
    token, own_head, exists, positions, first, last = _rows_of(
        block, tokens, seq_len, GROUP, BLOCK_M
    )
    heads = head * GROUP + own_head
    queries = _queries(
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
            NUM_KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, True,
        )  # fmt: skip
        begin = tl.maximum(begin, inner)
    top, total, acc = _attend(
        top, total, acc, queries, positions,
        keys, values, key_scales, value_scales, table, head,
        begin, seen_by_all, first_key, end_key, scale, softcap, window,
        HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
        NUM_KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, False,
    )  # fmt: skip
    top, total, acc = _attend(
        top, total, acc, queries, positions,
        keys, values, key_scales, value_scales, table, head,
        tl.maximum(begin, seen_by_all), end, first_key, end_key, scale, softcap, window,
        HAS_WINDOW, HAS_SOFTCAP, KEY_FORM, VALUE_FORM, KEY_DTYPE, VALUE_DTYPE, PRECISION,
        NUM_KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, True,
    )  # fmt: skip
    result = _finished(top, total, acc, sinks, heads, exists, HAS_SINKS)
    _store(out, result, start, token, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM, VALUE_WIDTH)


@triton.jit
def _attend_few(
    q, out, sums, tops, totals, keys, values, key_scales, value_scales, sinks,
    table, start, tokens, seq_len, own_item, few_before, head,
    stride_qt, stride_qh, lanes, num_splits, scale, softcap, window,
    JOINED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, KEY_FORM: tl.constexpr, VALUE_FORM: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    token, own_head, exists, positions, first, last = _rows_of(
        own_item // lanes, tokens, seq_len, GROUP, BLOCK_M
    )
    heads = head * GROUP + own_head
    size = _split_size(seq_len, SPLIT, MAX_SPLITS)
    end_key = tl.minimum(last + 1, seq_len)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first - window + 1, 0)
    first_split = first_key // size + own_item % lanes
    end_split = (end_key + size - 1) // size
    queries = _queries(
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
            NUM_KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_WIDTH, VALUE_WIDTH, BLOCK_N, True,
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
            all_top, all_total, all_acc = _fold(all_top, all_total, all_acc, top, total, acc)
    if not JOINED:
        result = _finished(all_top, all_total, all_acc, sinks, heads, exists, HAS_SINKS)
        _store(
            out, result, start, token, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM, VALUE_WIDTH
        )


@triton.jit(do_not_specialize=["num_requests", "num_splits", "window"])
def join_splits(
    out, sums, tops, totals, sinks, query_start_loc, seq_lens,
    num_requests, num_splits, window,
    ONE_TOKEN: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    FEW_TOKENS: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    REQUESTS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens of requests of few tokens, key heads): the results of these tokens from the sums
    of their splits. ONE_TOKEN: every request computes one."""
    few_token, head = tl.program_id(0), tl.program_id(1)
    if ONE_TOKEN:
        request, token = few_token, 0
    else:
        index = tl.arange(0, REQUESTS)
        inside = index < num_requests
        starts = tl.load(query_start_loc + index, mask=inside, other=0)
        counts = tl.load(query_start_loc + index + 1, mask=inside, other=0) - starts
        counts = tl.where(counts <= FEW_TOKENS, counts, 0)
        request = tl.sum((tl.cumsum(counts, 0) <= few_token).to(tl.int32), 0)
        if request >= num_requests:
            return
        token = few_token - tl.sum(tl.where(index < request, counts, 0), 0)
    start = tl.load(query_start_loc + request)
    tokens = tl.load(query_start_loc + request + 1) - start
    seq_len = tl.load(seq_lens + request)
    position = seq_len - tokens + token
    size = _split_size(seq_len, SPLIT, MAX_SPLITS)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(position - window + 1, 0)

    own_head, dims = tl.arange(0, GROUP_WIDTH), tl.arange(0, VALUE_WIDTH)
    exists = own_head < GROUP
    heads = head * GROUP + own_head
    rows = (few_token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads) * num_splits
    mask = exists[:, None] & (dims < VALUE_DIM)[None, :]
    top = tl.full([GROUP_WIDTH], NOTHING, tl.float32)
    total = tl.zeros([GROUP_WIDTH], tl.float32)
    acc = tl.zeros([GROUP_WIDTH, VALUE_WIDTH], tl.float32)
    end_split = (position + size) // size
    for split in range(first_key // size, end_split, 4):
        for ahead in tl.static_range(4):  # their loads overlap
            row = rows + split + ahead
            # to add what is not there changes nothing
            is_there = exists & (own_head * 0 + split + ahead < end_split)
            pointers = sums + row[:, None] * VALUE_DIM + dims[None, :]
            top, total, acc = _fold(
                top, total, acc,
                tl.load(tops + row, mask=is_there, other=NOTHING),
                tl.load(totals + row, mask=is_there, other=0.0),
                tl.load(pointers, mask=mask & is_there[:, None], other=0.0),
            )  # fmt: skip
    result = _finished(top, total, acc, sinks, heads, exists, HAS_SINKS)
    _store(
        out, result, start, token + own_head * 0, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM,
        VALUE_WIDTH,
    )  # fmt: skip
