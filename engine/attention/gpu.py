"""Paged attention on a GPU: pages, tables and scratch memory on the device, and one launch per
layer for any mix of prefill, chunks, decode and drafts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.attention import varlen
from engine.attention.cpu import CPUAttention
from engine.attention.device_tables import DeviceTables
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import make_caches
from engine.attention.varlen import VarlenSteps
from engine.batch.batch import Batch
from engine.config import SETTINGS
from engine.kernels.measure import Choice
from engine.kernels.triton import support
from engine.numerics.kv_dtype import PLAIN, KVDtype

if TYPE_CHECKING:
    from engine.kernels.triton.attention import Launch, Shape


WIDEST_HEAD = 256
"""Of the Triton kernel."""

_ORDINARY = LayerSpec(8, 128, 128)
_LARGE_BLOCK = 256  # varlen_attn needs a multiple of it


def choose_attention(
    device: torch.device,
    layers: Collection[LayerSpec],
    dtype: torch.dtype,
    kv_dtype: KVDtype,
    block_size: int,
) -> Choice:
    """For a cache of `layers`. Implementations: "triton", our kernel; "varlen", torch's over pages;
    "torch", SDPA over gathered pages."""
    widest = max(max(spec.key_dim, spec.value_dim) for spec in layers)
    without_ours = support.problem(device)
    if not without_ours and widest > WIDEST_HEAD:
        without_ours = f"head size {widest}: the Triton kernel supports up to {WIDEST_HEAD}"
    if not without_ours:
        why = "one kernel launch for prefill, decode and drafts"
        return Choice(f"attention, {device}", "any", 1, "triton", why)
    unfit = varlen.problem(device, layers, dtype, kv_dtype, block_size)
    if unfit:
        why = f"gathers KV blocks for SDPA; varlen_attn: {unfit}"
    else:
        why = "varlen_attn; layers with softcapping or sinks use SDPA on gathered KV blocks"
    return Choice(
        f"attention, {device}, block size {block_size}", str(dtype).removeprefix("torch."), 1,
        "torch" if unfit else "varlen", f"{without_ours}: {why}",
    )  # fmt: skip


def attention_choices(device: torch.device) -> list[Choice]:
    """The choices for an ordinary bfloat16 model."""
    sizes = (SETTINGS["block_size"].default, _LARGE_BLOCK)
    found = [choose_attention(device, [_ORDINARY], torch.bfloat16, PLAIN, n) for n in sizes]
    return list(dict.fromkeys(found))


_PADDING = 64  # more requests than any two neighbouring shapes differ by
WORKSPACE_BYTES = 32 * 2**20
"""For sums of split sequences; fewer programs share a sequence where they need more."""

MOST_CAPTURED = 256
"""Rows of the largest step that is captured as a CUDA graph."""

MOST_WORKSPACE_BYTES = 256 * 2**20
"""Where decoding needs more than WORKSPACE_BYTES to be split, as it does with long contexts. On an
H200, for 32 heads of 128 elements in groups of 4, it is 69 MB, where the cache of one request of
16,384 tokens in 32 layers is 2 GB."""


class GPUAttention:
    """The attention backend of a GPU, `device` (in tests also the CPU, in Triton's interpreter).

    A captured graph may contain what `forward` launches for a batch of `fixed_shape`, but not
    `begin_step`, which runs before every replay. implementation: one of the choices of
    `choose_attention` (the default); only "triton" can be captured. most_workspace: maximum bytes
    for the partial sums of split sequences, where decoding needs more than WORKSPACE_BYTES.
    """

    def __init__(
        self,
        layers: dict[int, LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        kv_dtype: KVDtype = PLAIN,
        *,
        device: torch.device,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        implementation: str | None = None,
        most_workspace: int = MOST_WORKSPACE_BYTES,
    ) -> None:
        self.block_size = block_size
        self.description = self.implementation = implementation or ""
        if implementation is None:
            choice = choose_attention(device, layers.values(), dtype, kv_dtype, block_size)
            self.implementation = choice.implementation
            self.description = f"{choice.implementation} ({choice.reason})"
        self._device = device
        self._max_model_len = max_model_len
        self._batch: Batch | None = None
        self._gathering: CPUAttention | None = None
        self._varlen: VarlenSteps | None = None
        most_blocks = min(-(-max_model_len // block_size), num_blocks)
        # batches are filled up to a shape that has some more than there may be requests
        most_requests = -(-min(max_num_seqs, max_num_batched_tokens) // _PADDING) * _PADDING
        if self.implementation != "triton":
            if self.implementation == "varlen":
                self._varlen = VarlenSteps(most_requests, most_blocks, device)
            self._gathering = CPUAttention(
                layers, num_blocks, block_size, dtype, kv_dtype=kv_dtype, device=device
            )
            self.caches = self._gathering.caches
            return
        self.caches = make_caches(layers, num_blocks, block_size, dtype, kv_dtype, device)
        self._pages = {
            layer: (one.keys.tensors, one.values.tensors) for layer, one in self.caches.items()
        }
        self._static = self._tables = DeviceTables(most_requests, most_blocks, device)
        self._larger: DeviceTables | None = None
        wanted = _bytes_of_decoding(layers.values(), dtype, most_requests, max_model_len, device)
        size = max(WORKSPACE_BYTES, min(wanted, most_workspace))
        self._workspace = torch.empty(size // 4, dtype=torch.float32, device=device)
        self._launches: dict[tuple[Shape, int | None], Launch] = {}

    @property
    def can_be_captured(self) -> bool:
        """Whether `forward` launches the same kernels for all batches of one fixed shape."""
        return self._gathering is None

    @property
    def most_captured(self) -> int:
        """Requests of the largest batch of a fixed shape."""
        return self._static.capacity if self.can_be_captured else 0

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches.values())

    @property
    def resident(self) -> int:
        return self.nbytes

    @property
    def workspace_bytes(self) -> int:
        """Device memory beside the cache."""
        if self._gathering is not None:
            return 0 if self._varlen is None else self._varlen.nbytes
        larger = 0 if self._larger is None else self._larger.nbytes
        return self._workspace.nbytes + self._static.nbytes + larger

    def clear_blocks(self, blocks: list[int]) -> None:
        for cache in self.caches.values():
            cache.clear(blocks)

    def begin_step(self, batch: Batch) -> None:
        self._batch = batch
        if self._gathering is not None:
            self._gathering.begin_step(batch)
            if self._varlen is not None:
                self._varlen.begin_step(batch)
            return
        self._launches = {}
        self._tables = self._tables_for(batch)
        self._tables.fill(batch)

    def _tables_for(self, batch: Batch) -> DeviceTables:
        """The static tables that captured graphs use, or larger ones: the limit on running requests
        may rise while the engine runs."""
        if self._static.has_room_for(batch):
            return self._static
        assert not batch.fixed_shape, "more requests than the captured graphs have room for"
        if self._larger is None or not self._larger.has_room_for(batch):
            most_blocks = max(self._static.most_blocks, max(map(len, batch.block_tables)))
            requests = max(2 * self._static.capacity, batch.num_requests)
            self._larger = DeviceTables(requests, most_blocks, self._device)
        return self._larger

    @property
    def _step(self) -> Batch:
        assert self._batch is not None, "begin_step comes first"
        return self._batch

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store k[T, Hkv, Dk] and v[T, Hkv, Dv] at the step's slots."""
        if self._gathering is not None:
            self._gathering.write(layer, k, v)
            return
        from engine.kernels.triton.kv_write import write_kv

        write_kv(k, v, *self._pages[layer], self._step.slot_mapping)

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.write(layer, k, v)
        return self.attend(layer, q, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of q[T, Hq, Dk] over what is stored: [T, Hq, Dv]."""
        if self._varlen is not None and self._varlen.takes(options):
            return self._varlen.attend(q, self.caches[layer], options)
        if self._gathering is not None:
            return self._gathering.attend(layer, q, options)
        from engine.kernels.triton.attention import Shape, paged_attention

        if q.stride(-1) != 1:
            q = q.contiguous()
        keys, values = self._pages[layer]
        _, num_kv_heads, _, key_dim = keys.elements.shape
        value_dim = values.elements.shape[3]
        out = q.new_empty(q.shape[0], q.shape[1], value_dim)
        shape = Shape(q.shape[1], num_kv_heads, key_dim, value_dim, q.itemsize)
        launch = self._launch(shape, options.most_keys)
        return paged_attention(q, keys, values, self._tables, launch, options, out, self._workspace)

    def _launch(self, shape: Shape, most_keys: int | None) -> Launch:
        """The launch for layers of this shape in this step, shared by all of them."""
        from engine.kernels.triton.attention import plan_fixed, plan_launch
        from engine.kernels.triton.support import device_of

        key = (shape, most_keys)
        if key not in self._launches:
            batch, device = self._step, device_of(self._device)
            room = self._workspace.numel()
            if batch.fixed_shape:
                self._launches[key] = plan_fixed(
                    shape, batch.num_requests, batch.num_tokens, self._max_model_len, most_keys,
                    device, room,
                )  # fmt: skip
            else:
                lens = [batch.query_len(i) for i in range(batch.num_requests)]
                self._launches[key] = plan_launch(
                    shape, lens, batch.seq_lens, most_keys, device, room
                )
        return self._launches[key]


def _bytes_of_decoding(
    layers: Iterable[LayerSpec],
    dtype: torch.dtype,
    most_requests: int,
    max_model_len: int,
    device: torch.device,
) -> int:
    """Of the sums of steps that decode, where those are split."""
    from engine.kernels.triton.attention import Shape, floats_of_decoding
    from engine.kernels.triton.support import device_of

    shapes = {
        Shape(
            spec.num_heads or spec.num_kv_heads, spec.num_kv_heads, spec.key_dim, spec.value_dim,
            dtype.itemsize,
        )
        for spec in layers
    }  # fmt: skip
    floats = [
        floats_of_decoding(shape, most_requests, max_model_len, device_of(device))
        for shape in shapes
    ]
    return 4 * max(floats, default=0)
