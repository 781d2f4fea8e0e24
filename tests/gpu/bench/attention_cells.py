"""Attention over the paged cache, with the write of the new keys and values, a layer at a time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from engine.attention.interface import AttentionBackend, AttentionOptions, LayerSpec
from engine.batch.batch import Batch, Span, pack
from engine.numerics.kv_dtype import parse_kv_dtype
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.shapes import KV_BYTES, Shape
from tests.gpu.bench.timing import num_sets, time_turns

BLOCK = 16
_FILLED_AT_ONCE = 16_384  # tokens
_DTYPE = torch.bfloat16
_ROOM = 256  # tokens


def measure(
    bench: Bench, *, shape: str, kv: str, batch: int, new: int, context: int
) -> dict[str, Any]:
    """`batch` requests compute `new` tokens each, the last of `context`. Every layer in turn has
    its own cache, so that none is read from the processor's."""
    found, own = Shape.named(shape), -(-context // BLOCK)
    read = batch * context * 2 * found.num_kv_heads * found.head_dim * KV_BYTES[kv]
    num_layers = min(found.num_layers, num_sets(read, bench.device))
    backend = make_backend(bench, found, kv, num_layers, batch, context)
    tables = _tables(batch, own)
    for layer in range(num_layers):
        _fill(bench, found, backend, layer, tables, context)
    spans = [Span([0] * new, context - new, table, 1) for table in tables]
    packed = dataclasses.replace(on_device(bench, spans), fixed_shape=new == 1)
    backend.begin_step(packed)
    q, k, v = random_qkv(bench, found, batch * new)
    options = AttentionOptions(found.head_dim**-0.5)
    timed = time_turns(
        lambda turn: backend.forward(turn % num_layers, q, k, v, options), bench.device
    )
    pairs = new * (context - new) + new * (new + 1) / 2
    figures = {
        "bytes": read + 2 * q.nbytes,
        "flops": batch * pairs * 4 * found.num_heads * found.head_dim,
        "time": timed.as_dict(),
    }
    if new > 1 and new == context and kv == "auto":
        figures["torch_time"] = _torch_time(bench, found, batch, new)
    return figures


def make_backend(
    bench: Bench, shape: Shape, kv: str, num_layers: int, batch: int, context: int
) -> AttentionBackend:
    """The engine's cache for the device, with a block more than `batch` requests of `context`
    need, and about as much room for each as an engine would announce for them."""
    spec = LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim)
    layers = dict.fromkeys(range(num_layers), spec)
    num_blocks = batch * -(-context // BLOCK) + 1
    if bench.device.type == "cpu":
        from engine.attention.cpu import CPUAttention

        return CPUAttention(layers, num_blocks, BLOCK, _DTYPE, torch.float32, parse_kv_dtype(kv))
    from engine.attention.gpu import GPUAttention

    return GPUAttention(
        layers, num_blocks, BLOCK, _DTYPE, parse_kv_dtype(kv),
        device=bench.device, max_num_seqs=max(256, batch), max_model_len=context + _ROOM,
        max_num_batched_tokens=max(batch * context, _FILLED_AT_ONCE),
    )  # fmt: skip


def _tables(batch: int, own: int) -> list[list[int]]:
    """Block tables in no order, as in an engine that has run for a while."""
    blocks = list(range(1, batch * own + 1))
    random.Random(batch).shuffle(blocks)
    return [blocks[i * own : (i + 1) * own] for i in range(batch)]


@torch.inference_mode()
def _fill(
    bench: Bench, shape: Shape, backend: AttentionBackend, layer: int,
    tables: Sequence[Sequence[int]], context: int,
) -> None:  # fmt: skip
    """Random keys and values in every place: a cache of zeros would be read faster than a true
    one."""
    together = max(1, _FILLED_AT_ONCE // context)
    options = AttentionOptions(shape.head_dim**-0.5)
    for begin in range(0, len(tables), together):
        part = tables[begin : begin + together]
        backend.begin_step(on_device(bench, [Span([0] * context, 0, t, 1) for t in part]))
        q, k, v = random_qkv(bench, shape, len(part) * context)
        backend.forward(layer, q, k, v, options)


def on_device(bench: Bench, spans: Sequence[Span]) -> Batch:
    batch = pack(spans, BLOCK)
    names = ("input_ids", "positions", "slot_mapping", "logits_indices")
    return dataclasses.replace(
        batch, **{name: getattr(batch, name).to(bench.device) for name in names}
    )


def random_qkv(bench: Bench, shape: Shape, num_tokens: int) -> tuple[torch.Tensor, ...]:
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    return tuple(
        torch.randn(num_tokens, n, shape.head_dim, device=bench.device, dtype=_DTYPE) for n in heads
    )


def _torch_time(bench: Bench, shape: Shape, batch: int, length: int) -> dict[str, Any]:
    """The same prompts by torch's own attention, on keys and values that lie together."""
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    q, k, v = (
        torch.randn(batch, n, length, shape.head_dim, device=bench.device, dtype=_DTYPE)
        for n in heads
    )
    timed = time_turns(
        lambda turn: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        bench.device,
    )
    return timed.as_dict()
