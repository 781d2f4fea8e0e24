"""Puts unquantized weights in the form in which the CPU multiplies them fastest
(`engine.kernels.linear.fastest_form`), once a model is filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from engine.errors import LoadCancelled
from engine.kernels.cpu.compressed import CompressedWeights
from engine.kernels.embedding import PackedEmbedding, is_plain_embedding
from engine.kernels.linear import Linear, fastest_form


def arrange_weights(
    model: nn.Module,
    dtype: torch.dtype,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Counter[str]:
    """How many linear layers have each form but the plain one.

    One after the other, so that memory rises by one weight at most. A weight that something else
    reads too stays as it is, but for compressed ones that input embeddings share. Raises
    LoadCancelled.
    """
    uses = Counter(
        p.data_ptr() for m in model.modules() for p in m.parameters(recurse=False) if p.numel()
    )
    chosen = [
        m
        for m in model.modules()
        if isinstance(m, Linear)
        and m.packed is None  # its `weight` would be a plain copy
        and m.weight.dtype is dtype
        and m.weight.device.type == "cpu"
        and uses[m.weight.data_ptr()] == (2 if _embedding_of(model, m) else 1)
    ]
    total, done, found = sum(m.weight.nbytes for m in chosen), 0, Counter[str]()
    for module in chosen:
        if cancelled():
            raise LoadCancelled("Loading was cancelled.")
        size = module.weight.nbytes
        if _arrange(model, module):
            progress("Repacking weights", done, total)
            assert module.packed is not None
            found[module.packed.title] += 1
        done += size
    return found


def _arrange(model: nn.Module, module: Linear) -> bool:
    """Whether a layer's weight is no longer plain."""
    embedding = _embedding_of(model, module)
    weights = fastest_form(module.weight)
    if weights is None:
        return False
    if embedding is not None:
        if not isinstance(weights, CompressedWeights):
            return False
        shared = PackedEmbedding(embedding, weights, is_tied=True)
        model.set_input_embeddings(shared)  # type: ignore[operator]
    module.pack(weights)
    return True


def _embedding_of(model: nn.Module, module: Linear) -> nn.Module | None:
    """The input embeddings that are tied to `module`, the output head."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not module:
        return None
    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    if not is_plain_embedding(embedding):
        return None
    weight = embedding.get_parameter("weight")
    is_tied = module.packed is None and weight.data_ptr() == module.weight.data_ptr()
    return embedding if is_tied and weight.shape == module.weight.shape else None
