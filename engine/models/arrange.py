"""The last step of loading on a CPU: weights in the order in which its products read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from engine.errors import LoadCancelled
from engine.kernels import blocked
from engine.kernels.linear import Linear
from engine.kernels.registry import blocked_choices


def block_weights(
    model: nn.Module,
    dtype: torch.dtype,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> int:
    """Arrange the weights of linear layers on the CPU for its products where that pays; how many
    were.

    One after the other, so that memory rises by one weight at most. A weight that something else
    reads too (an embedding that the head is tied to) stays plain, and so does one that blocks would
    make larger.
    Raises LoadCancelled.
    """
    if not any(p.device.type == "cpu" for p in model.parameters()):
        return 0  # before anything is measured
    if not blocked_choices(dtype):
        return 0
    uses = Counter(
        p.data_ptr() for m in model.modules() for p in m.parameters(recurse=False) if p.numel()
    )
    chosen = [
        m
        for m in model.modules()
        if isinstance(m, Linear)
        and m.held is None  # asking what is held for its weight would make it plain
        and m.weight.dtype is dtype
        and m.weight.device.type == "cpu"
        and uses[m.weight.data_ptr()] == 1
        and blocked.fits(m.weight)
    ]
    total, done = sum(m.weight.nbytes for m in chosen), 0
    for module in chosen:
        if cancelled():
            raise LoadCancelled("Loading was cancelled.")
        progress("Arranging weights", done, total)
        module.block_weight()
        done += module.held_bytes
    return len(chosen)
