"""Paged attention with torch operations, for the CPU and for devices without our kernels: it
gathers the pages of a sequence and attends, without padding to the longest context and without a
mask over the batch.

Requests that compute one token (decode) are batched in buckets of similar length. Longer queries
(prefill, chunks) run sequence by sequence in blocks of rows; a block reads only the keys that it
can see. Compiled code, where available, handles the requests with few tokens, and those with
many where its tiles are faster; torch does the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import CPU, Gathered, PagedCache, make_caches, page_rows, token_rows
from engine.attention.rows import (
    FEW_QUERIES,
    attend_plain,
    attend_rows,
    capped,
    is_plain,
    score,
    softmax_with_sinks,
    weigh,
)
from engine.batch.batch import Batch
from engine.hardware.mapped import EarlyUse, resident_bytes
from engine.kernels.cpu.attention import NativeCache, NativeStep, can_attend
from engine.kernels.cpu.check import library
from engine.numerics.kv_dtype import PLAIN, KVDtype

# A bucket of decoding requests holds contexts of which the longest is at most this much longer.
BUCKET_RATIO = 1.25
BUCKET_SLACK = 64

AHEAD_BYTES, AT_LOAD_S, IDLE_S = 2**29, 1.0, 0.005
"""Of the KV cache, beyond the blocks that were in use, which the system is asked for before a step
needs them; and how long that takes at most when a model is loaded, and at a time between requests.
"""


@dataclass(slots=True)
class Tables:
    """Block tables [B, blocks] of sequences that are gathered together (a short table is padded
    with its own first block), and the page rows for each number of heads."""

    tables: Tensor
    _rows: dict[int, Tensor] = field(default_factory=dict)

    def of(self, cache: PagedCache, dtype: torch.dtype) -> tuple[Gathered, Gathered]:
        """Keys and values of [B * Hkv, blocks * block_size, D] in `dtype`."""
        num_kv_heads = cache.keys.num_heads
        if num_kv_heads not in self._rows:
            self._rows[num_kv_heads] = page_rows(self.tables, num_kv_heads)
        rows, count = self._rows[num_kv_heads], len(self.tables)
        return cache.keys.gather(rows, count, dtype), cache.values.gather(rows, count, dtype)


class Span(NamedTuple):
    """The part of a request that its tokens in this step can see: blocks, the position of their
    first token, and how many tokens from there on."""

    start: int
    seq_len: int
    blocks: list[int]

    @property
    def last(self) -> int:
        """Position of the last token."""
        return self.start + self.seq_len - 1


class Prefill(NamedTuple):
    """A request that computes several tokens in this step; start, seq_len: see `Span`."""

    rows: slice
    start: int
    seq_len: int
    tables: Tables


class DecodeBucket(NamedTuple):
    """B requests that compute one token each. Tables start at the first visible block and cover L
    keys in whole blocks. hidden[B, 1, 1, L]: keys that do not exist or lie before the window or
    chunk; bias, same shape: added to the scores for them, in the compute dtype."""

    rows: Tensor | slice
    size: int
    tables: Tables
    hidden: Tensor | None
    bias: Tensor | None


class Layout(NamedTuple):
    """The prefills and decode buckets of a step, shared by the layers that see the same keys and
    leave the same requests to compiled code."""

    prefills: list[Prefill]
    buckets: list[DecodeBucket]


class CPUAttention:
    """The attention backend of the CPU, and the slow fallback for any other `device`.

    compute_dtype: dtype of matmuls; float32 where the machine has no fast 16-bit arithmetic.
    prompt_dtype: the same for requests with many tokens in a step (None: compute_dtype). kv_dtype:
    storage dtype of keys and values. few_tokens: compiled code attends for requests that compute
    fewer tokens than this in a step (`engine.attention.choices`); in_tiles: for the others too.
    """

    def __init__(
        self,
        layers: dict[int, LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        compute_dtype: torch.dtype | None = None,
        kv_dtype: KVDtype = PLAIN,
        prompt_dtype: torch.dtype | None = None,
        device: torch.device = CPU,
        few_tokens: int = sys.maxsize,
        in_tiles: bool = False,
    ) -> None:
        self.block_size, self._num_blocks = block_size, num_blocks
        self._device = device
        self.compute_dtype = compute_dtype or dtype
        self.prompt_dtype = prompt_dtype or self.compute_dtype
        if kv_dtype.is_quantized and torch.float16 in (self.compute_dtype, self.prompt_dtype):
            # sums of codes leave float16's range
            self.compute_dtype = self.prompt_dtype = torch.float32
        self.caches = make_caches(layers, num_blocks, block_size, dtype, kv_dtype, device)
        self._few_tokens = few_tokens
        self._compiled: dict[int, NativeCache] = {}  # by layer, where compiled code can read it
        for layer, cache in self.caches.items():
            keys, values = cache.keys.tensors, cache.values.tensors
            if can_attend(keys, values) and (native := library()):
                self._compiled[layer] = NativeCache(native, keys, values)
        # of this step, the requests with few tokens, and those that compiled code computes in tiles
        self._few, self._many = NativeStep(), NativeStep()
        self._has_tiles, self._is_for_any = in_tiles, False
        self._early = EarlyUse([one.elements for cache in self.caches.values() for one in cache])
        self._batch: Batch | None = None
        # by window, chunk, and whether without the requests of few tokens
        self._layouts: dict[tuple[int | None, int | None, bool], Layout] = {}
        self._new_rows: dict[int, Tensor] = {}  # where this step's tokens go, by number of heads

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches.values())

    @property
    def resident(self) -> int | None:
        stored = [pages.tensors for cache in self.caches.values() for pages in cache]
        return resident_bytes(
            tensor for one in stored for tensor in (one.elements, one.scales) if tensor is not None
        )

    def clear_blocks(self, blocks: list[int]) -> None:
        for cache in self.caches.values():
            cache.clear(blocks)

    def use_ahead(self, num_blocks: int, most_s: float = AT_LOAD_S) -> bool:
        """Have the system give the memory of the first `num_blocks` blocks and AHEAD_BYTES beyond
        it, for so long. Whether there is more to be given."""
        return self._early.use(AHEAD_BYTES, most_s, num_blocks / self._num_blocks)

    def begin_step(self, batch: Batch) -> None:
        self._batch = batch
        self._layouts, self._new_rows = {}, {}
        if self._compiled:
            count = batch.num_requests - batch.num_padding
            few = [i for i in range(count) if batch.query_len(i) < self._few_tokens]
            many = [i for i in range(count) if batch.query_len(i) >= self._few_tokens]
            self._few.begin(*_columns(batch, few))
            self._many.begin(*_columns(batch, many if self._has_tiles else []))

    def _layout(self, batch: Batch, options: AttentionOptions, layer: int) -> Layout:
        key = options.window, options.chunk, layer in self._compiled
        if key not in self._layouts:
            count = batch.num_requests - batch.num_padding
            fewest = self._few_tokens if layer in self._compiled else 0
            mine = [i for i in range(count) if batch.query_len(i) >= fewest]
            spans = {i: self._visible(batch, i, options) for i in mine}
            decodes = [i for i in mine if batch.query_len(i) == 1]
            prefills = [
                Prefill(
                    slice(batch.query_start_loc[i], batch.query_start_loc[i + 1]),
                    spans[i].start,
                    spans[i].seq_len,
                    Tables(self._tensor([spans[i].blocks])),
                )
                for i in mine
                if batch.query_len(i) > 1
            ]
            grouped = bucket_by_length(decodes, {i: span.seq_len for i, span in spans.items()})
            buckets = [
                self._bucket(
                    [batch.query_start_loc[i] for i in members],
                    [spans[i] for i in members],
                    options,
                )
                for members in grouped
            ]
            self._layouts[key] = Layout(prefills, buckets)
        return self._layouts[key]

    def _visible(self, batch: Batch, index: int, options: AttentionOptions) -> Span:
        """Without the blocks before every window or chunk."""
        seq_len, table = batch.seq_lens[index], batch.block_tables[index]
        first_seen = max(0, options.first_key(seq_len - batch.query_len(index)))
        skipped = first_seen // self.block_size
        start = skipped * self.block_size
        return Span(start, seq_len - start, table[skipped:] if skipped else table)

    def _bucket(
        self, rows: list[int], spans: list[Span], options: AttentionOptions
    ) -> DecodeBucket:
        seq_lens = [span.seq_len for span in spans]
        tables = [span.blocks for span in spans]
        width = max(len(table) for table in tables)
        padded = [table + [table[0]] * (width - len(table)) for table in tables]
        # also where one request is alone: libraries prepare a product anew for every new length,
        # and so do that once per block and not in every step
        length = width * self.block_size
        keys = torch.arange(length, device=self._device)
        ends = self._tensor(seq_lens).unsqueeze(1)
        hidden = keys >= ends
        if options.most_keys is not None:
            firsts = [options.first_key(span.last) - span.start for span in spans]
            hidden |= keys < self._tensor(firsts).unsqueeze(1)
        some = hidden.view(len(rows), 1, 1, -1) if bool(hidden.any()) else None
        bias = None
        if some is not None:
            bias = torch.zeros(some.shape, dtype=self.compute_dtype, device=self._device)
            bias.masked_fill_(some, float("-inf"))
        gathered = Tables(self._tensor(padded))
        return DecodeBucket(_rows(rows, self._device), len(rows), gathered, some, bias)

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._device)

    @property
    def _step(self) -> Batch:
        assert self._batch is not None, "begin_step comes first"
        return self._batch

    def is_repeatable(self, layer: int) -> bool:
        """Whether `layer`'s attention in this step consists of compiled calls that can be repeated
        for any later step with as many decoding requests, or tokens of one request, once
        `begin_step` was called for it; or for any other (`for_any_step`)."""
        if self._is_for_any:
            return True
        batch = self._step
        own = batch.num_requests - batch.num_padding
        is_compiled = self._few.num_requests + self._many.num_requests == own
        return layer in self._compiled and is_compiled and (batch.is_decode or own == 1)

    @contextmanager
    def for_any_step(self) -> Iterator[bool]:
        """Inside, layers call all compiled code that attends for requests of any number of tokens,
        whatever the step has. Whether no other code attends."""
        is_compiled = self._has_tiles or self._few_tokens == sys.maxsize
        self._is_for_any = is_compiled and all(layer in self._compiled for layer in self.caches)
        try:
            yield self._is_for_any
        finally:
            self._is_for_any = False

    def scratch_bytes(self) -> int:
        """Of those calls, in this step."""
        native = library()
        return self._few.most_scratch_bytes(native) if native is not None else 0

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at the step's slots."""
        batch, num_kv_heads, slots = self._step, k.shape[1], self._step.slot_mapping
        if layer in self._compiled:
            self._compiled[layer].write(slots, k, v)
            return
        if padding := batch.num_padding:  # one token each, at the end
            k, v, slots = k[:-padding], v[:-padding], slots[:-padding]
        if num_kv_heads not in self._new_rows:
            self._new_rows[num_kv_heads] = token_rows(slots, self.block_size, num_kv_heads)
        cache = self.caches[layer]
        for pages, new in ((cache.keys, k), (cache.values, v)):
            pages.write(self._new_rows[num_kv_heads], new)

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.write(layer, k, v)
        return self.attend(layer, q, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of q[T, Hq, Dk] over what is stored: [T, Hq, Dv]."""
        batch, cache = self._step, self.caches[layer]
        output = q.new_empty(q.shape[0], q.shape[1], cache.values.elements.shape[3])
        if batch.num_padding:
            output[-batch.num_padding :] = 0
        compiled = self._compiled.get(layer)
        if compiled is not None and (self._few.num_requests or self._is_for_any):
            compiled.attend(self._few, q, output, *options)
        many = self._many.num_requests or (self._is_for_any and self._has_tiles)
        if compiled is not None and many:
            compiled.attend(self._many, q, output, *options, in_tiles=True)
        if compiled is not None and self._has_tiles:
            return output
        layout = self._layout(batch, options, layer)
        for prefill in layout.prefills:
            dtype = self._dtype_for(prefill.rows)
            keys, values = prefill.tables.of(cache, dtype)
            attend_rows(
                q[prefill.rows].to(dtype),
                keys.part(0, prefill.seq_len),
                values.part(0, prefill.seq_len),
                options,
                output[prefill.rows],
                prefill.start,
            )
        for bucket in layout.buckets:
            self._decode(bucket, cache, q, options, output)
        return output

    def _dtype_for(self, rows: slice) -> torch.dtype:
        """The dtype for a prefill. For a few verified drafts, converting all keys takes longer than
        it saves."""
        return self.prompt_dtype if rows.stop - rows.start >= FEW_QUERIES else self.compute_dtype

    def _decode(
        self,
        bucket: DecodeBucket,
        cache: PagedCache,
        q: Tensor,
        options: AttentionOptions,
        output: Tensor,
    ) -> None:
        keys, values = bucket.tables.of(cache, self.compute_dtype)
        size, num_kv_heads = bucket.size, cache.keys.num_heads
        queries = q[bucket.rows].to(self.compute_dtype)
        if is_plain(keys, values, options):
            # a query head of every group is a row of the product with its key head
            by_group = queries.reshape(size, num_kv_heads, -1, queries.shape[-1])
            result = attend_plain(by_group, keys, values, bucket.bias, options.scaling)
            output[bucket.rows] = result.reshape(size, -1, result.shape[-1]).to(output.dtype)
            return
        grouped = (queries * options.scaling).reshape(size * num_kv_heads, -1, queries.shape[-1])
        scores = capped(score(grouped, keys), options)
        by_head = scores.view(size, num_kv_heads, -1, scores.shape[-1])
        if bucket.hidden is not None:
            by_head.masked_fill_(bucket.hidden, float("-inf"))
        sinks = None if options.sinks is None else options.sinks.view(num_kv_heads, -1, 1)
        probabilities = softmax_with_sinks(by_head, sinks).flatten(0, 1)
        result = weigh(probabilities, values)
        output[bucket.rows] = result.reshape(size, -1, result.shape[-1]).to(output.dtype)


def _columns(batch: Batch, requests: list[int]) -> tuple[list[Any], ...]:
    """The arguments of compiled code for some of the requests."""
    return (
        [batch.query_start_loc[i] for i in requests],
        [batch.query_len(i) for i in requests],
        [batch.seq_lens[i] for i in requests],
        [batch.block_tables[i] for i in requests],
    )


def _rows(rows: list[int], device: torch.device) -> Tensor | slice:
    """An index of rows. Adjacent ones, as in a decode-only step, are a slice, which needs no copy.
    """
    first, last = rows[0], rows[-1]
    if rows == list(range(first, last + 1)):
        return slice(first, last + 1)
    return torch.tensor(rows, device=device)


def bucket_by_length(members: list[int], seq_lens: Mapping[int, int]) -> list[list[int]]:
    """Groups of requests with contexts of similar length, to limit padding."""
    buckets: list[list[int]] = []
    shortest = 0
    for member in sorted(members, key=lambda i: seq_lens[i]):
        if buckets and seq_lens[member] <= shortest * BUCKET_RATIO + BUCKET_SLACK:
            buckets[-1].append(member)
        else:
            buckets.append([member])
            shortest = seq_lens[member]
    return buckets
