"""Paged attention by a kernel of torch's own (`torch.nn.attention.varlen`), for GPUs on which ours
do not run: one launch a layer, pages are read where they lie.

Whether it computes rightly on a device is tried before (`varlen_trial`). What it has no words for,
a soft cap and sinks, is left to others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.device_tables import DeviceTables
from engine.attention.interface import AttentionOptions
from engine.attention.pages import PagedCache
from engine.batch import Batch


class _Step(NamedTuple):
    """What all layers of a step pass, by torch's names; tensors are int32 on the device."""

    cu_seq_q: Tensor
    cu_seq_k: Tensor  # its kernel wants it, and reads seqused_k in its place
    max_q: int
    max_k: int
    seqused_k: Tensor
    block_table: Tensor


class VarlenSteps:
    """For steps of up to `max_requests` requests with up to `most_blocks` blocks each; for larger
    ones it takes more memory."""

    def __init__(self, max_requests: int, most_blocks: int, device: torch.device) -> None:
        self._device = device
        self._tables = DeviceTables(max_requests, most_blocks, device)
        self._step: _Step | None = None

    @property
    def nbytes(self) -> int:
        return self._tables.nbytes

    def begin_step(self, batch: Batch) -> None:
        """Copy lengths and tables to the device, without waiting for it."""
        self._step = None
        if batch.fixed_shape:  # what fills it up is nobody's sequence
            return
        tables = self._tables
        if not tables.has_room_for(batch):
            most_blocks = max(tables.most_blocks, max(map(len, batch.block_tables)))
            requests = max(tables.capacity, 2 * batch.num_requests)
            tables = self._tables = DeviceTables(requests, most_blocks, self._device)
        tables.fill(batch)
        count, width = batch.num_requests, tables.width
        seq_lens = tables.seq_lens[:count]
        self._step = _Step(
            cu_seq_q=tables.query_start_loc[: count + 1],
            cu_seq_k=F.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
            max_q=max(map(batch.query_len, range(count))),
            max_k=max(batch.seq_lens),
            seqused_k=seq_lens,
            block_table=tables.block_tables[: count * width].view(count, width),
        )

    def takes(self, options: AttentionOptions) -> bool:
        """Whether a layer of this step can be attended here."""
        return self._step is not None and options.softcap is None and options.sinks is None

    def attend(self, q: Tensor, cache: PagedCache, options: AttentionOptions) -> Tensor:
        """Causal attention of q[T, Hq, D] over plain pages, which hold this step's keys and values
        already: [T, Hq, D]."""
        from torch.nn.attention.varlen import varlen_attn

        assert self._step is not None, "begin_step comes first"
        keys, values = (pages.stored.elements.transpose(1, 2) for pages in cache)
        # (left, right): so many keys before and after a query's own, which stands where its
        # sequence ends; of ours the query's own is one
        window = (-1, 0) if options.window is None else (options.window - 1, 0)
        found = varlen_attn(
            q.to(keys.dtype).contiguous(), keys, values, **self._step._asdict(),
            scale=options.scaling, window_size=window, enable_gqa=True,
            # others would make a token depend on its batch, and leave rows of paged steps
            # unwritten (pytorch #194167)
            num_splits=1,
        )  # fmt: skip
        assert isinstance(found, Tensor)  # with its log-sum-exp only where that is asked for
        return found.to(q.dtype)
