"""The interface between a transformers model and our attention.

transformers calls one registered function per layer with the packed queries, keys and values of the
step. Block tables and lengths, which it does not pass, are in a context object that the model
runner activates around the forward pass. Forward kwargs would not do: several model families drop
unknown ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
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

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor: ...


class AttentionBackend(AttentionContext, Protocol):
    """Owns the KV cache of every layer and attends over it.

    `begin_step` prepares what all layers of a step share. `forward` writes the step's keys
    k[T, Hkv, Dk] and values v[T, Hkv, Dv] to the batch's slots, attends with q[T, Hq, Dk] over
    all keys of each token's own sequence up to itself, and returns [T, Hq, Dv]. `attend` does the
    same without writing: the step's keys and values are in the pages of `layer` already.
    """

    def begin_step(self, batch: Batch) -> None: ...

    def clear_blocks(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros, so that their old content is never read again."""

    @property
    def nbytes(self) -> int: ...

    @property
    def resident(self) -> int | None:
        """Of these bytes, those that take memory: on a CPU, pages that were used. None where the
        system does not tell."""


class PagedBackend(AttentionBackend, Protocol):
    """A backend with a real KV cache."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values of the step without attending."""


class _Active(threading.local):
    context: AttentionContext | None = None

    def __init__(self) -> None:
        self.on_layer: Callable[[], None] = lambda: None


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
    return _context().forward(layer, q, k, v, options)


def report_layers(to: Callable[[], None]) -> None:
    """Call `to` before the attention of each layer that this thread computes."""
    _active.on_layer = to


def before_layer() -> None:
    """Tell whom `report_layers` named that the attention of a layer is next."""
    _active.on_layer()


def _context() -> AttentionContext:
    before_layer()
    if _active.context is None:
        raise RuntimeError("Paged attention was called outside the model runner.")
    return _active.context


_STORED = "_stored_by_layer"
"""Attribute of keys and values: the layer in whose pages they are. Layers that share KV get the
very tensors of an earlier layer; they have no pages of their own."""


class Visible(NamedTuple):
    """The earlier tokens that a layer sees: all (None, None), the last `window` with its own, or
    those of its own chunk of `chunk` tokens."""

    window: int | None = None
    chunk: int | None = None


REMEDY = "Choose a model with causal or sliding-window attention."

VISIBLE = "_visible"
"""Attribute of attention modules whose mask was read (`engine.attention.masks`)."""


def visible_to(module: torch.nn.Module, sliding_window: int | None) -> Visible:
    """By the mask of an attention module, or by the window that its class passes."""
    visible: Visible | None = module.__dict__.get(VISIBLE)
    return Visible(sliding_window) if visible is None else visible


HARMLESS = {
    "cache_position": "the batch has the positions",
    "cu_seq_lens_k": "the batch has the lengths",
    "cu_seq_lens_q": "the batch has the lengths",
    "max_length_k": "the batch has the lengths",
    "max_length_q": "the batch has the lengths",
    "num_items_in_batch": "only a loss needs it",
    "output_attentions": "the engine reads logits and hidden states only",
    "output_hidden_states": "the model collects them",
    "output_router_logits": "the model collects them",
    "position_ids": "the rotary embedding has used them",
    "use_cache": "about transformers' own cache",
}
"""Arguments that classes pass on to the attention function and that change nothing there. Others
raise."""


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
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: q[1, Hq, T, Dk], k[1, Hkv, T, Dk], v[1, Hkv, T, Dv] after
    rotary, to [1, T, Hq, Dv]. Raises UnsupportedModelError for what it would have to ignore."""
    if (
        attention_mask is not None
        or dropout
        or is_causal is False
        or not others.keys() <= HARMLESS.keys()
    ):
        given = {"attention_mask": attention_mask, "dropout": dropout or None}
        _refuse(module, {**given, "is_causal": None if is_causal else is_causal, **others})
    if key.shape[2] != query.shape[2] or value.shape[2] != query.shape[2]:
        raise UnsupportedModelError(
            f"{type(module).__name__} has {query.shape[2]} queries and {key.shape[2]} keys in one "
            "step; the engine requires equal numbers.",
            REMEDY,
        )
    window, chunk = visible_to(module, sliding_window)
    options = AttentionOptions(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=window,
        softcap=softcap,
        sinks=s_aux,
        chunk=chunk,
    )
    q, context = query[0].transpose(0, 1), _context()
    owner = getattr(key, _STORED, None)
    if owner is not None and owner == getattr(value, _STORED, None):
        return context.attend(owner, q, options).unsqueeze(0), None
    layer: int = module.layer_idx  # type: ignore[assignment]
    output = context.forward(layer, q, key[0].transpose(0, 1), value[0].transpose(0, 1), options)
    for stored in (key, value):
        setattr(stored, _STORED, layer)
    return output.unsqueeze(0), None


def _refuse(module: torch.nn.Module, given: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError for arguments that would change the result."""
    unknown = sorted(n for n, v in given.items() if v is not None and n not in HARMLESS)
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} passes {', '.join(unknown)} to the attention function, which "
            "the engine does not support.",
            REMEDY,
        )


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
        return self.attend(layer, q, options)

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        return q.new_zeros(q.shape[0], q.shape[1], self.layers[layer].value_dim)
