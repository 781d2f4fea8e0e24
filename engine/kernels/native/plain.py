"""The product with plain weights of 16 bits that plain.c computes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.native.library import library

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
