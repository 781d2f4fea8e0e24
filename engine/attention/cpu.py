"""Paged attention on the CPU: gather the pages of a sequence, attend, nothing padded to the
longest context and no mask over the batch.

Cache layout of one layer, for K and V alike:

    [num_blocks, block_size, Hkv, D]   viewed as   [num_slots, Hkv, D] for writing
                                            and as [num_blocks, block_size * Hkv * D] for gathering

Requests that compute one token (decode) are taken together in buckets of similar length; longer
queries (prefill, chunks) go sequence by sequence in blocks of rows, each of which reads only the
keys that it can see.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch import Batch

# Rows of queries that attend together in prefill: the scores of a block of rows and all heads
# should stay in the last-level cache, and the triangle that is computed in vain stays small.
QUERY_BLOCK = 64
# A bucket of decoding requests holds contexts of which the longest is at most this much longer.
BUCKET_RATIO = 1.25
BUCKET_SLACK = 64


class PagedCache(NamedTuple):
    """K and V pages of one layer, [num_blocks, block_size, Hkv, D] each."""

    keys: Tensor
    values: Tensor

    def gather(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Pages of the blocks table[N] as [N * block_size, Hkv, D]."""
        return _gather(self.keys, table), _gather(self.values, table)


def _gather(pages: Tensor, table: Tensor) -> Tensor:
    # index_select over flat pages is a plain copy; indexing with a tensor is many times slower.
    flat = pages.view(pages.shape[0], -1).index_select(0, table)
    return flat.view(-1, *pages.shape[2:])


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is taken from the system only when it is first written (calloc)."""
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)


class Prefill(NamedTuple):
    """One request that computes several tokens in this step. seq_len counts from the first token
    of `table`, which begins with the first block that a token of this step can see."""

    rows: slice
    seq_len: int
    table: Tensor
    run: slice | None  # blocks that lie side by side need no gathering


class DecodeBucket(NamedTuple):
    """Requests that compute one token each. rows[B]; seq_lens and table[B * blocks] from the
    first visible block on, short tables filled up with their own first block; hidden[B, 1, 1, L]:
    keys that do not exist or lie before the window."""

    rows: Tensor
    seq_lens: list[int]
    table: Tensor
    hidden: Tensor | None
    run: slice | None


class Layout(NamedTuple):
    """What all layers of a step that have one window share."""

    prefills: list[Prefill]
    buckets: list[DecodeBucket]


def contiguous_run(table: list[int]) -> slice | None:
    """The blocks as one slice if they lie side by side in memory, else None."""
    first = table[0]
    if table == list(range(first, first + len(table))):
        return slice(first, first + len(table))
    return None


class CPUAttention:
    """The attention backend of the CPU. `compute_dtype` is what products run in: float32 where
    the machine has no fast 16-bit arithmetic."""

    def __init__(
        self,
        layers: dict[int, LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.block_size = block_size
        self.compute_dtype = compute_dtype or dtype
        self.caches = {
            layer: PagedCache(
                lazy_zeros((num_blocks, block_size, spec.num_kv_heads, spec.key_dim), dtype),
                lazy_zeros((num_blocks, block_size, spec.num_kv_heads, spec.value_dim), dtype),
            )
            for layer, spec in layers.items()
        }
        self._batch: Batch | None = None
        self._layouts: dict[int | None, Layout] = {}  # by window

    @property
    def nbytes(self) -> int:
        return sum(c.keys.nbytes + c.values.nbytes for c in self.caches.values())

    def clear_blocks(self, blocks: list[int]) -> None:
        for cache in self.caches.values():
            cache.keys[blocks] = 0
            cache.values[blocks] = 0

    def begin_step(self, batch: Batch) -> None:
        self._batch = batch
        self._layouts = {}

    def _layout(self, batch: Batch, window: int | None) -> Layout:
        if window not in self._layouts:
            spans = [self._visible(batch, i, window) for i in range(batch.num_requests)]
            decodes = [i for i in range(batch.num_requests) if batch.query_len(i) == 1]
            prefills = [
                Prefill(
                    slice(batch.query_start_loc[i], batch.query_start_loc[i + 1]),
                    spans[i][0],
                    torch.tensor(spans[i][1]),
                    contiguous_run(spans[i][1]),
                )
                for i in range(batch.num_requests)
                if batch.query_len(i) > 1
            ]
            grouped = bucket_by_length(decodes, [seq_len for seq_len, _ in spans])
            buckets = [
                self._bucket(
                    [batch.query_start_loc[i] for i in members], [spans[i] for i in members], window
                )
                for members in grouped
            ]
            self._layouts[window] = Layout(prefills, buckets)
        return self._layouts[window]

    def _visible(self, batch: Batch, index: int, window: int | None) -> tuple[int, list[int]]:
        """(tokens, blocks) of a request without the blocks that lie before every window."""
        seq_len, table = batch.seq_lens[index], batch.block_tables[index]
        if window is None:
            return seq_len, table
        first_seen = max(0, seq_len - batch.query_len(index) + 1 - window)
        skipped = first_seen // self.block_size
        return seq_len - skipped * self.block_size, table[skipped:]

    def _bucket(
        self, rows: list[int], spans: list[tuple[int, list[int]]], window: int | None
    ) -> DecodeBucket:
        seq_lens = [seq_len for seq_len, _ in spans]
        tables = [table for _, table in spans]
        width = max(len(table) for table in tables)
        padded = [table + [table[0]] * (width - len(table)) for table in tables]
        # a request alone is cut at its end instead
        length = width * self.block_size if len(rows) > 1 else seq_lens[0]
        keys, ends = torch.arange(length), torch.tensor(seq_lens).unsqueeze(1)
        hidden = keys >= ends
        if window is not None:
            hidden |= keys < ends - window
        return DecodeBucket(
            rows=torch.tensor(rows),
            seq_lens=seq_lens,
            table=torch.tensor(padded).view(-1),
            hidden=hidden.view(len(rows), 1, 1, -1) if bool(hidden.any()) else None,
            run=contiguous_run(tables[0]) if len(rows) == 1 else None,
        )

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        batch = self._batch
        assert batch is not None, "begin_step comes first"
        cache = self.caches[layer]
        dtype = cache.keys.dtype
        cache.keys.view(-1, *k.shape[1:]).index_copy_(0, batch.slot_mapping, k.to(dtype))
        cache.values.view(-1, *v.shape[1:]).index_copy_(0, batch.slot_mapping, v.to(dtype))
        output = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
        layout = self._layout(batch, options.window)
        for prefill in layout.prefills:
            keys, values = self._sequence(cache, prefill.table, prefill.run, prefill.seq_len)
            attend_rows(
                q[prefill.rows].to(self.compute_dtype), keys, values, options, output[prefill.rows]
            )
        for bucket in layout.buckets:
            self._decode(bucket, cache, q, options, output)
        return output

    def _sequence(
        self, cache: PagedCache, table: Tensor, run: slice | None, seq_len: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of one sequence as [Hkv, seq_len, D] in the compute dtype."""
        if run is not None:
            keys, values = cache.keys[run].flatten(0, 1), cache.values[run].flatten(0, 1)
        else:
            keys, values = cache.gather(table)
        return (
            keys[:seq_len].transpose(0, 1).to(self.compute_dtype),
            values[:seq_len].transpose(0, 1).to(self.compute_dtype),
        )

    def _decode(
        self,
        bucket: DecodeBucket,
        cache: PagedCache,
        q: Tensor,
        options: AttentionOptions,
        output: Tensor,
    ) -> None:
        size = len(bucket.seq_lens)
        if size == 1:
            keys, values = self._sequence(cache, bucket.table, bucket.run, bucket.seq_lens[0])
            keys, values = keys.unsqueeze(0), values.unsqueeze(0)
        else:
            keys, values = cache.gather(bucket.table)
            keys = keys.view(size, -1, *keys.shape[1:]).transpose(1, 2).to(self.compute_dtype)
            values = values.view(size, -1, *values.shape[1:]).transpose(1, 2)
            values = values.to(self.compute_dtype)
        num_kv_heads = keys.shape[1]
        queries = q[bucket.rows].to(self.compute_dtype)
        grouped = queries.view(size, num_kv_heads, -1, queries.shape[-1])
        scores = torch.matmul(grouped * options.scaling, keys.transpose(2, 3))
        scores = capped(scores, options)
        if bucket.hidden is not None:
            scores.masked_fill_(bucket.hidden, float("-inf"))
        sinks = None if options.sinks is None else options.sinks.view(num_kv_heads, -1, 1)
        probabilities = softmax_with_sinks(scores, sinks)
        result = torch.matmul(probabilities, values)
        output[bucket.rows] = result.reshape(size, -1, result.shape[-1]).to(output.dtype)


def bucket_by_length(members: list[int], seq_lens: list[int]) -> list[list[int]]:
    """Groups of requests whose contexts are of similar length, so that little is padded."""
    buckets: list[list[int]] = []
    shortest = 0
    for member in sorted(members, key=lambda i: seq_lens[i]):
        if buckets and seq_lens[member] <= shortest * BUCKET_RATIO + BUCKET_SLACK:
            buckets[-1].append(member)
        else:
            buckets.append([member])
            shortest = seq_lens[member]
    return buckets


def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions, output: Tensor
) -> None:
    """Causal attention of the last T tokens of one sequence, written to output[T, Hq, Dv].

    q[T, Hq, Dk], keys[Hkv, L, Dk], values[Hkv, L, Dv]; query t stands at position L - T + t. The
    query heads of a group are rows of one product with their key head.
    """
    num_tokens, num_heads, _ = q.shape
    num_kv_heads, length, _ = keys.shape
    group = num_heads // num_kv_heads
    context = length - num_tokens
    folded = (q * options.scaling).view(num_tokens, num_kv_heads, group, -1).permute(1, 2, 0, 3)
    transposed = keys.transpose(1, 2)
    sinks = None if options.sinks is None else options.sinks.view(num_kv_heads, group, 1, 1)
    for begin in range(0, num_tokens, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, num_tokens)
        rows, visible = end - begin, context + end
        first = 0
        if options.window is not None:
            first = max(0, context + begin + 1 - options.window)
        block = folded[:, :, begin:end].reshape(num_kv_heads, group * rows, -1)
        scores = torch.bmm(block, transposed[:, :, first:visible])
        scores = capped(scores, options).view(num_kv_heads, group, rows, -1)
        mask_block(scores, rows, first, context + begin, options.window)
        probabilities = softmax_with_sinks(scores, sinks)
        result = torch.bmm(
            probabilities.view(num_kv_heads, group * rows, -1), values[:, first:visible]
        )
        result = result.view(num_kv_heads, group, rows, -1).permute(2, 0, 1, 3)
        output[begin:end] = result.reshape(rows, num_heads, -1).to(output.dtype)


def mask_block(
    scores: Tensor, rows: int, first: int, position: int, window: int | None
) -> None:
    """Hide from scores[..., rows, keys] the keys after each query (only the last `rows` columns
    can be) and before its window. Key column c stands at position first + c."""
    scores[..., -rows:].masked_fill_(_later(rows), float("-inf"))
    if window is not None and position + rows - window > first:
        keys = torch.arange(first, first + scores.shape[-1])
        earliest = torch.arange(position, position + rows) - window + 1
        scores.masked_fill_(keys < earliest.unsqueeze(1), float("-inf"))


@functools.cache
def _later(rows: int) -> Tensor:
    """[rows, rows]: whether the key stands after the query."""
    return torch.ones(rows, rows, dtype=torch.bool).triu_(1)


def capped(scores: Tensor, options: AttentionOptions) -> Tensor:
    if options.softcap is None:
        return scores
    return scores.div_(options.softcap).tanh_().mul_(options.softcap)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of `scores`. `sinks`, one value per head and broadcast over
    the rest, adds to the denominator alone."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    extra = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]
