"""What a layer is given, tensor by tensor, on the device that computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def carried(value: Any, device: torch.device, copy: Callable[[Tensor], Tensor]) -> Any:
    """Nested arguments with what `copy` makes of each tensor that is on another device."""
    if isinstance(value, Tensor):
        return value if value.device == device else copy(value)
    if isinstance(value, dict):
        return {name: carried(one, device, copy) for name, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(carried(one, device, copy) for one in value)
    return value
