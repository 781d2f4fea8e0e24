"""The operations of elementwise.c on tensors: norms, rotary embedding, gated activation."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.cpu.library import FORMATS, TYPES, Library

_WIDEST = 512  # head: elementwise.c


def fits(x: Tensor, *others: Tensor) -> bool:
    """Whether elementwise.c reads these: one 16-bit dtype, the others contiguous."""
    if x.dtype not in FORMATS or x.device.type != "cpu":
        return False
    return all(other.dtype is x.dtype and other.is_contiguous() for other in others)


def heads_fit(heads: Tensor, *others: Tensor) -> bool:
    """The same for `rotate_heads`."""
    return heads.stride(2) == 1 and heads.shape[2] <= _WIDEST and fits(heads, *others)


def rms_norm(native: Library, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    x, width = x.contiguous(), x.shape[-1]
    result = torch.empty_like(x)
    native.rms_norm(
        x.data_ptr(), weight.data_ptr(), result.data_ptr(), x.numel() // width, width, eps, offset,
        TYPES[x.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return result


def rotate_heads(
    native: Library,
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
    num_queries: int = 0,
    eps: float = 0.0,
    offset: float = 0.0,
) -> Tensor:
    """weights: those of the norms, of the first `num_queries` heads and of the others."""
    tokens, count, width = heads.shape
    queries, keys = (None, None) if weights is None else (w.data_ptr() for w in weights)
    result = heads.new_empty((tokens, count, width))
    native.rotate_heads(
        heads.data_ptr(), heads.stride(0), heads.stride(1), cos.data_ptr(), sin.data_ptr(),
        cos.shape[1], queries, keys, num_queries, eps, offset, result.data_ptr(), tokens, count,
        width, TYPES[heads.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return result


def silu_and_mul(native: Library, gate_up: Tensor) -> Tensor:
    gate_up, size = gate_up.contiguous(), gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    native.silu_and_mul(
        gate_up.data_ptr(), result.data_ptr(), gate_up.numel() // (2 * size), size,
        TYPES[gate_up.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return result
