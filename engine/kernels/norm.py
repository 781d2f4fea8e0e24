"""RMSNorm on the CPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """x [..., width] / sqrt(mean(x^2) + eps) * (offset + weight [width]), in float32 inside."""
    return normed(x, eps).mul_(factors(weight, offset)).to(x.dtype)


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
