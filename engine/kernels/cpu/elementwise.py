"""Norms, rotary embedding and gated activation on the CPU: elementwise.c, and torch versions of
parts of them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.cpu.library import FORMATS, TYPES, Library

_WIDEST = 512  # head: elementwise.c


class HeadNorms(NamedTuple):
    """RMSNorm of each head: weights [D] of the first `num_queries` heads and of the keys'."""

    queries: Tensor
    keys: Tensor
    num_queries: int
    eps: float
    offset: float


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
        torch.get_num_threads(),
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


def normed(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), a float32 tensor of its own."""
    # torch.rms_norm is a chain of passes here; the 2-norm reads x once. Everything is
    # float32 before it meets: operands of unlike dtypes are converted one by one. Not addcmul:
    # its last bit depends on the place of a row in the batch.
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    mean = torch.mul(norm, norm).mul_(_constant(1 / x.shape[-1]))
    scale = mean.add_(_constant(eps)).rsqrt_()
    return wide * scale if wide is x else wide.mul_(scale)  # x is the caller's


def factors(weight: Tensor, offset: float) -> Tensor:
    """What a normed row is multiplied with, float32 [width]."""
    wide = weight.float()
    return wide + offset if offset else wide


@cache
def _constant(value: float) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin in three passes instead of five. x [..., T, D]; cos, sin
    broadcastable to it, their halves equal. For a rotary width below D the rest stays."""
    width = cos.shape[-1]
    half = width // 2
    turned = x if width == x.shape[-1] else x[..., :width]
    result = turned * cos
    result[..., :half].addcmul_(turned[..., half:], sin[..., :half], value=-1)
    result[..., half:].addcmul_(turned[..., :half], sin[..., half:])
    return result if turned is x else torch.cat((result, x[..., width:]), dim=-1)
