"""The KV cache of one layer on the CPU, and the indices by which its pages are read and written.

Layout, for K and V alike: [num_blocks, Hkv, block_size, D]. A page, the block_size x D tokens of
one head in one block, is one stretch of memory: gathering the pages of a request head by head is a
plain copy whose result a batched product reads as it is. With the heads inside the tokens the
product has to turn keys and values round for itself, which took five to fifteen times as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class PagedCache(NamedTuple):
    """K and V pages of one layer, [num_blocks, Hkv, block_size, D] each."""

    keys: Tensor
    values: Tensor

    def write(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at the rows that `token_rows` gave for them."""
        for pages, new in ((self.keys, k), (self.values, v)):
            width = pages.shape[-1]
            flat = new.to(pages.dtype).reshape(-1, width)
            pages.view(-1, width).index_copy_(0, rows, flat)

    def gather(self, pages: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the sequences that `page_rows` named: [num_sequences * Hkv, L, D],
        where L is the number of blocks of a sequence times the block size."""
        batch = num_sequences * self.keys.shape[1]
        return _gather(self.keys, pages, batch), _gather(self.values, pages, batch)


def _gather(pages: Tensor, rows: Tensor, batch: int) -> Tensor:
    # index_select over flat pages is a plain copy; indexing with a tensor is many times slower
    flat = pages.view(-1, pages.shape[2] * pages.shape[3]).index_select(0, rows)
    return flat.view(batch, -1, pages.shape[3])


def make_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, dims: tuple[int, int], dtype: torch.dtype
) -> PagedCache:
    """An empty cache for keys and values of `dims` elements per head."""
    key_dim, value_dim = dims
    return PagedCache(
        _lazy_zeros((num_blocks, num_kv_heads, block_size, key_dim), dtype),
        _lazy_zeros((num_blocks, num_kv_heads, block_size, value_dim), dtype),
    )


def page_rows(tables: Tensor, num_kv_heads: int) -> Tensor:
    """Rows of the pages of tables[B, blocks], sequence by sequence, head by head."""
    heads = torch.arange(num_kv_heads).view(1, -1, 1)
    return (tables.unsqueeze(1) * num_kv_heads + heads).view(-1)


def token_rows(slots: Tensor, block_size: int, num_kv_heads: int) -> Tensor:
    """Rows of the tokens in slots[T] (block * block_size + place in it), token by token, head by
    head."""
    blocks, places = slots // block_size, slots % block_size
    pages = blocks.unsqueeze(1) * num_kv_heads + torch.arange(num_kv_heads)
    return (pages * block_size + places.unsqueeze(1)).view(-1)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is taken from the system only when it is first written (calloc)."""
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
