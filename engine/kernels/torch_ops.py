"""The parts of RMSNorm on the CPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


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
