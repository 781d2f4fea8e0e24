"""Requests of a step that compute few tokens each, by code that was compiled here: their pages are
read where they lie, and all of a layer is one call. What is decoded, and drafts that are verified,
are such requests, and the ends of prompts; where nothing is faster, prompts too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from engine.attention.interface import AttentionOptions
from engine.attention.pages import PagedCache
from engine.batch import Batch
from engine.kernels.native.attention import NativeCache, NativeStep, native_cache


class FewTokens:
    """What of a step is attended so, in the layers where it can be: requests that compute fewer
    tokens than `limit`."""

    def __init__(self, caches: Mapping[int, PagedCache], limit: int) -> None:
        self._limit = limit
        self._caches: dict[int, NativeCache] = {}
        for layer, cache in caches.items():
            native = native_cache(cache.keys.stored, cache.values.stored)
            if native is not None:
                self._caches[layer] = native
        self._step: NativeStep | None = None  # None: no request of this step computes few tokens

    def begin_step(self, batch: Batch) -> None:
        """Padding is nobody's."""
        self._step = None
        if not self._caches:
            return
        count = batch.num_requests - batch.num_padding
        chosen = [i for i in range(count) if batch.query_len(i) < self._limit]
        if chosen:
            self._step = NativeStep(
                [batch.query_start_loc[i] for i in chosen],
                [batch.query_len(i) for i in chosen],
                [batch.seq_lens[i] for i in chosen],
                [batch.block_tables[i] for i in chosen],
            )

    def __contains__(self, layer: int) -> bool:
        return layer in self._caches

    def takes(self, layer: int, query_len: int) -> bool:
        """Whether a request of so many tokens is attended here."""
        return query_len < self._limit and layer in self._caches

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Keys and values of any number of tokens."""
        self._caches[layer].write(slots, k, v)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions, output: Tensor) -> None:
        """To the rows of output[T, Hq, Dv] that belong to such requests."""
        if self._step is not None:
            self._caches[layer].attend(self._step, q, output, *options)
