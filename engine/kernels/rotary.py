"""Rotary embedding by torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor


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
