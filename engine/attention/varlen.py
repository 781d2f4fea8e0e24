"""Paged attention with `torch.nn.attention.varlen`, for GPUs on which our kernels do not run: one
launch per layer, in place on the pages.

A test run on the device decides whether it is used (`problem`). It supports no chunks,
logit softcapping or sinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.device_tables import DeviceTables
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import Gathered, PagedCache, Pages, token_rows
from engine.attention.rows import attend_rows
from engine.batch.batch import Batch, Span, pack, slots
from engine.errors import is_out_of_memory
from engine.numerics.kv_dtype import KVDtype


class _Step(NamedTuple):
    """The arguments that all layers of a step share, under torch's names; tensors are int32 on the
    device."""

    cu_seq_q: Tensor
    cu_seq_k: Tensor  # its kernel wants it, and reads seqused_k in its place
    max_q: int
    max_k: int
    seqused_k: Tensor
    block_table: Tensor


class VarlenSteps:
    """Arguments for steps of up to `max_requests` requests with up to `most_blocks` blocks each;
    larger steps allocate more memory."""

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
        if batch.fixed_shape:  # padding belongs to no sequence
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
        return self._step is not None and not (
            options.softcap or options.sinks is not None or options.chunk
        )

    def attend(self, q: Tensor, cache: PagedCache, options: AttentionOptions) -> Tensor:
        """Causal attention of q[T, Hq, D] over plain pages, which hold this step's keys and values
        already: [T, Hq, D]."""
        from torch.nn.attention.varlen import varlen_attn

        assert self._step is not None, "begin_step comes first"
        keys, values = (pages.tensors.elements.transpose(1, 2) for pages in cache)
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


TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3}
_NUM_KV_HEADS, _GROUP = 2, 3


def problem(
    device: torch.device,
    layers: Iterable[LayerSpec],
    dtype: torch.dtype,
    kv_dtype: KVDtype,
    block_size: int,
) -> str:
    """Why it cannot attend over such a cache; "" if it can."""
    specs = list(layers)
    if kv_dtype.is_quantized:
        return "does not support an 8-bit KV cache"
    if dtype not in TOLERANCE:
        return "requires a 16-bit model"
    if any(spec.key_dim != spec.value_dim for spec in specs):
        return "requires equal key and value head sizes"
    widths = sorted({spec.key_dim for spec in specs})
    found = (_problem_of(device, dtype, width, block_size) for width in widths)
    try:
        return next(filter(None, found), "")
    except RuntimeError as error:  # checked again with the next cache
        if not is_out_of_memory(error):
            raise
        return "not enough memory for a test run"


@cache
def _problem_of(device: torch.device, dtype: torch.dtype, width: int, block_size: int) -> str:
    try:
        errors = _errors(device, dtype, width, block_size)
    except Exception as error:  # a GPU, a width or a block size that it is not for
        if is_out_of_memory(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        return first_line.partition(". ")[0].rstrip(".") or type(error).__name__
    if all(error <= TOLERANCE[dtype] for error in errors):
        return ""
    return f"incorrect results on this device (head size {width}, block size {block_size})"


@torch.inference_mode()
def _errors(device: torch.device, dtype: torch.dtype, width: int, block_size: int) -> list[float]:
    """The errors of a mix of prefill, chunks and decode, and of decode only, which has kernels of
    its own."""
    before = (0, block_size - 1, 2 * block_size + 1, 3, block_size // 2)
    mixed = list(zip(before, (5, 4, 1, 70, 1), strict=True))
    decoded = [(tokens, 1) for tokens in before]
    world = _World(device, dtype, width, block_size)
    return [
        world.error(requests, window)
        for requests in (mixed, decoded)
        for window in (None, 1, 7, block_size)
    ]


class _World:
    def __init__(
        self, device: torch.device, dtype: torch.dtype, width: int, block_size: int
    ) -> None:
        self.device, self.dtype, self.width, self.block_size = device, dtype, width, block_size
        self._generator = torch.Generator().manual_seed(width + block_size)

    def _noise(self, tokens: int, heads: int) -> Tensor:
        noise = torch.randn(tokens, heads, self.width, generator=self._generator)
        return noise.to(self.dtype)

    def error(self, requests: Sequence[tuple[int, int]], window: int | None) -> float:
        """Largest relative distance (2-norm) of a head's result from that in float32; NaN where
        one is. requests: (tokens computed before, tokens of this step)."""
        size = self.block_size
        # a scale that is not what it would be without one
        options = AttentionOptions(1.5 * self.width**-0.5, window)
        lengths = [before + new for before, new in requests]
        counts = [-(-length // size) for length in lengths]
        order = torch.randperm(sum(counts) + 2, generator=self._generator).tolist()
        tables = [[order.pop() for _ in range(count)] for count in counts]
        keys, values = (
            [self._noise(length, _NUM_KV_HEADS) for length in lengths] for _ in range(2)
        )
        queries = [self._noise(new, _NUM_KV_HEADS * _GROUP) for _, new in requests]
        cache = PagedCache(self._pages(tables, keys), self._pages(tables, values))
        steps = VarlenSteps(len(requests), max(counts), self.device)
        spans = [
            Span([0] * new, before, table, 1)
            for (before, new), table in zip(requests, tables, strict=True)
        ]
        steps.begin_step(pack(spans, size))
        found = steps.attend(torch.cat(queries).to(self.device), cache, options).float().cpu()
        wanted = torch.cat([
            _expected(*of_request, options)
            for of_request in zip(queries, keys, values, strict=True)
        ])  # fmt: skip
        distance = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(0.1)
        return float(distance.max())

    def _pages(self, tables: Sequence[Sequence[int]], sequences: Sequence[Tensor]) -> Pages:
        """In pages filled with NaN elsewhere, which must not be read."""
        shape = (sum(map(len, tables)) + 2, _NUM_KV_HEADS, self.block_size, self.width)
        pages = Pages(shape, self.dtype, self.device)
        pages.elements.fill_(float("nan"))
        for table, sequence in zip(tables, sequences, strict=True):
            places = torch.tensor(slots(table, 0, len(sequence), self.block_size))
            rows = token_rows(places.to(self.device), self.block_size, _NUM_KV_HEADS)
            pages.write(rows, sequence.to(self.device))
        return pages


def _expected(q: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions) -> Tensor:
    output = torch.empty(q.shape, dtype=torch.float32)
    of_keys, of_values = (Gathered(side.float().transpose(0, 1)) for side in (keys, values))
    attend_rows(q.float(), of_keys, of_values, options, output)
    return output
