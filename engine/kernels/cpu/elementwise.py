"""Norms, rotary embedding and gated activation on the CPU: elementwise.c."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.cpu.library import TYPES, Library
from engine.kernels.cpu.workspace import workspace


class HeadNorms(NamedTuple):
    """RMSNorm of each head: weights [D] of the first `num_queries` heads and of the keys'."""

    queries: Tensor
    keys: Tensor
    num_queries: int
    eps: float
    offset: float


def rms_norm(native: Library, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    x = x.contiguous()
    return _normed(native, x, (None, None), weight, eps, offset)


def add_rms_norm(
    native: Library, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    x, residual, total = x.contiguous(), residual.contiguous(), torch.empty_like(x)
    added = residual.data_ptr(), total.data_ptr()
    return _normed(native, x, added, weight, eps, offset), total


def _normed(
    native: Library, x: Tensor, added: tuple[int | None, int | None], weight: Tensor, eps: float,
    offset: float,
) -> Tensor:  # fmt: skip
    result, width = torch.empty_like(x), x.shape[-1]
    native.rms_norm(
        x.data_ptr(), *added, weight.data_ptr(), result.data_ptr(), x.numel() // width, width, eps,
        offset, TYPES[x.dtype], workspace().threads,
    )  # fmt: skip
    return result


def rotate_heads(
    native: Library, heads: Tensor, cos: Tensor, sin: Tensor, norms: HeadNorms | None
) -> Tensor:
    tokens, count, width = heads.shape
    normed: tuple[object, ...] = (None, None, 0, 0.0, 0.0)
    if norms is not None:
        normed = norms.queries.data_ptr(), norms.keys.data_ptr(), *norms[2:]
    result = heads.new_empty((tokens, count, width))
    native.rotate_heads(
        heads.data_ptr(), heads.stride(0), heads.stride(1), cos.data_ptr(), sin.data_ptr(),
        cos.shape[1], *normed, result.data_ptr(), tokens, count, width, TYPES[heads.dtype],
        workspace().threads,
    )  # fmt: skip
    return result


def silu_and_mul(native: Library, gate_up: Tensor) -> Tensor:
    gate_up, size = gate_up.contiguous(), gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    native.silu_and_mul(
        gate_up.data_ptr(), result.data_ptr(), gate_up.numel() // (2 * size), size,
        TYPES[gate_up.dtype], workspace().threads,
    )  # fmt: skip
    return result
