"""The interface between a transformers model and our attention.

transformers calls one registered function per layer with the packed queries, keys and values of the
step. Block tables and lengths, which it does not pass, are in a context object that the model
runner activates around the forward pass. Forward kwargs would not do: several model families drop
unknown ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.batch.batch import Batch
from engine.errors import UnsupportedModelError
from engine.kernels.paged_kv import AttentionOptions as AttentionOptions
from engine.numerics.kv_dtype import KVWidths

NAME = "inferdeck"


class LayerSpec(NamedTuple):
    """Shape of one layer's KV cache per token, and the number of query heads (0: unknown)."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    num_heads: int = 0

    @property
    def widths(self) -> KVWidths:
        heads = self.num_kv_heads
        return KVWidths(heads * self.key_dim, heads * self.value_dim, heads)


class AttentionContext(Protocol):
    """The attention that is active during a forward pass: a backend with its step, or a probe."""

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor: ...


class AttentionBackend(AttentionContext, Protocol):
    """Owns the KV cache of every layer and attends over it.

    `begin_step` prepares what all layers of a step share. `forward` writes the step's keys
    k[T, Hkv, Dk] and values v[T, Hkv, Dv] to the batch's slots, attends with q[T, Hq, Dk] over
    all keys of each token's own sequence up to itself, and returns [T, Hq, Dv].
    """

    def begin_step(self, batch: Batch) -> None: ...

    def clear_blocks(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros, so that their old content is never read again."""

    @property
    def nbytes(self) -> int: ...


class PagedBackend(AttentionBackend, Protocol):
    """A backend with a real KV cache."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values of the step without attending."""


class _Active(threading.local):
    context: AttentionContext | None = None


_active = _Active()


@contextmanager
def active(context: AttentionContext) -> Iterator[None]:
    """Use `context` for this thread's forward passes."""
    before, _active.context = _active.context, context
    try:
        yield
    finally:
        _active.context = before


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """Attention of one layer by this thread's active context; shapes as in `AttentionBackend`."""
    context = _active.context
    if context is None:
        raise RuntimeError("Paged attention was called outside the model runner.")
    return context.forward(layer, q, k, v, options)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: q[1, Hq, T, Dk], k[1, Hkv, T, Dk], v[1, Hkv, T, Dv] after
    rotary, to [1, T, Hq, Dv]."""
    options = AttentionOptions(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    output = attend(
        module.layer_idx,  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        options,
    )
    return output.unsqueeze(0), None


def register() -> None:
    """Make `NAME` known to transformers. It has no entry in the mask registry on purpose: then no
    mask is built."""
    from engine.lazy_transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


class KVProbe:
    """Records the KV shape of each layer during one forward pass (on the meta device too)."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerSpec] = {}

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        if layer in self.layers:
            raise UnsupportedModelError(
                f"Two attention modules have the same layer index: {layer}.",
                "Use a decoder-only model with one attention module per layer.",
            )
        self.layers[layer] = LayerSpec(k.shape[1], k.shape[2], v.shape[2], q.shape[1])
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
