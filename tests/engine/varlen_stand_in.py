"""torch's paged `varlen_attn` in plain float32, token by token: what its documentation and its own
tests say that it computes, and what its kernel refuses (torch 2.13, FlashAttention 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """query[T, Hq, D] over pages of [num_pages, page_size, Hkv, D]. The last query of a sequence
    stands at its last key; `window_size`: keys before and after a query's own, -1 for all."""
    assert cu_seq_k is not None and seqused_k is not None and block_table is not None
    assert return_aux is None and num_splits == 1
    count = len(seqused_k)
    for tensor in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert tensor.dtype is torch.int32 and tensor.device == query.device
        assert tensor.stride(-1) == 1
    assert len(cu_seq_q) == len(cu_seq_k) == count + 1 and len(block_table) == count
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    assert max_k == max(seqused_k.tolist()) and max_q == max(cu_seq_q.diff().tolist())
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.dtype == key.dtype == value.dtype and key.shape == value.shape
    assert enable_gqa or query.shape[1] == key.shape[2]
    group, page_size = query.shape[1] // key.shape[2], key.shape[1]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(query)
    for i in range(count):
        begin, end = cu_seq_q[i : i + 2].tolist()
        length = int(seqused_k[i])
        for row in range(begin, end):
            place = length - (end - row)
            left, right = window_size
            first = 0 if left < 0 else max(0, place - left)
            last = length if right < 0 else min(length, place + right + 1)
            seen = torch.arange(first, last)
            pages, places = block_table[i, seen // page_size].long(), seen % page_size
            keys = key[pages, places].float().repeat_interleave(group, 1)
            values = value[pages, places].float().repeat_interleave(group, 1)
            weights = (torch.einsum("hd,lhd->hl", query[row].float(), keys) * scale).softmax(-1)
            out[row] = torch.einsum("hl,lhd->hd", weights, values).to(out.dtype)
    return out
