"""Rows of a batch, taken out and put together again; nothing waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.transfer import upload_places


def select(x: Tensor, rows: Sequence[int]) -> Tensor:
    """Rows of `x` in ascending order; without a copy where they are neighbours."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return x[rows[0] : rows[-1] + 1]
    return x[upload_places(rows, x.device)]


def merged(parts: Sequence[tuple[list[int], Tensor]], count: int, device: torch.device) -> Tensor:
    """int64 [count] from the values at some of the places; every place is in one of the parts, and
    those of a part are ascending."""
    if len(parts) == 1:
        return parts[0][1]
    result = torch.empty(count, dtype=torch.int64, device=device)
    for places, values in parts:
        result.index_copy_(0, upload_places(places, device), values)
    return result
