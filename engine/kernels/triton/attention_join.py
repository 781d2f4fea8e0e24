"""Joins the sums of split sequences: the second half of paged attention for few tokens."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.attention_parts import (
    NOTHING,
    finished,
    fold,
    split_size,
    store_results,
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
    size = split_size(seq_len, SPLIT, MAX_SPLITS)
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
            top, total, acc = fold(
                top, total, acc,
                tl.load(tops + row, mask=is_there, other=NOTHING),
                tl.load(totals + row, mask=is_there, other=0.0),
                tl.load(pointers, mask=mask & is_there[:, None], other=0.0),
            )  # fmt: skip
    result = finished(top, total, acc, sinks, heads, exists, HAS_SINKS)
    store_results(
        out, result, start, token + own_head * 0, heads, exists, NUM_KV_HEADS * GROUP, VALUE_DIM,
        VALUE_WIDTH,
    )  # fmt: skip
