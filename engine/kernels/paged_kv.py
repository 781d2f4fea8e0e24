"""The arguments of attention kernels: the tensors of a layer's KV pages, and its options."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PLAIN = "plain"


class PageTensors(NamedTuple):
    """Keys or values of a layer: elements[num_blocks, Hkv, block_size, D] in the model's dtype; or
    int8 codes, with `form` "int8" or "fp8" (its bits), and scales[num_blocks, Hkv, block_size] in
    bfloat16."""

    elements: Tensor
    form: str = PLAIN
    scales: Tensor | None = None


class AttentionOptions(NamedTuple):
    """Variants of one layer. window: most recent keys visible, the query's own included.
    softcap: scores become softcap * tanh(scores / softcap). sinks[Hq]: one extra score per head
    that takes part in the softmax and has no value."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
