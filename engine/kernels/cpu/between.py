"""The product with plain weights of 16 bits that plain.c computes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu.library import TYPES, Library, library

FORMATS = (torch.bfloat16, torch.float16)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out], added up in float32 and rounded once.

    The weight is read where it lies, once for a few rows: nothing is packed, and one that an
    embedding shares, or that is a part of another, stays what it is. A row's result depends on no
    other and not on how many there are, bit by bit. Torch's own product where there is no compiled
    one, or not for this: another number format, inputs that do not lie beside each other.
    """
    native = library()
    if native is None or not fits(x, weight, bias):
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    result = native.plain(x.reshape(-1, inputs).contiguous(), weight, bias)
    return result.view(*x.shape[:-1], outputs)


def fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether plain.c reads these."""
    return (
        weight.dtype in FORMATS
        and weight.device.type == "cpu"
        and x.dtype is weight.dtype
        and x.shape[-1] == weight.shape[1]
        and (weight.stride(1) == 1 or weight.shape[1] == 1)
        and (bias is None or (bias.dtype is weight.dtype and bias.is_contiguous()))
    )


_WIDEST = 512  # head: between.c


def library_for(x: Tensor, *others: Tensor) -> Library | None:
    """What computes these: 16 bits, one number format, others contiguous; None if nothing does."""
    if x.dtype not in FORMATS or x.device.type != "cpu":
        return None
    if not all(other.dtype is x.dtype and other.is_contiguous() for other in others):
        return None
    return library()


def library_for_heads(heads: Tensor, *others: Tensor) -> Library | None:
    """The same for `rotate_heads`."""
    if heads.stride(2) != 1 or heads.shape[2] > _WIDEST:
        return None
    return library_for(heads, *others)


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
