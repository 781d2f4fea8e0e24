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
    tied = _tied(model)
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
        and uses[m.weight.data_ptr()] == (2 if m in tied else 1)
    ]
    total, done, found = sum(m.weight.nbytes for m in chosen), 0, Counter[str]()
    for module in chosen:
        if cancelled():
            raise LoadCancelled("Loading was cancelled.")
        done += module.weight.nbytes
        weights = fastest_form(module.weight)
        if weights is None:
            continue
        if module in tied:
            if not isinstance(weights, CompressedWeights):
                continue
            shared = PackedEmbedding(tied[module], weights, is_tied=True)
            model.set_input_embeddings(shared)  # type: ignore[operator]
        module.pack(weights)
        found[weights.title] += 1
        progress("Repacking weights", done, total)
    return found


def _tied(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The output head, and the input embeddings that are tied to it; or nothing."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(head, Linear) or head.packed is not None:
        return {}
    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    if not is_plain_embedding(embedding):
        return {}
    weight, own = embedding.get_parameter("weight"), head.weight
    is_tied = weight.data_ptr() == own.data_ptr() and weight.shape == own.shape
    return {head: embedding} if is_tied else {}
