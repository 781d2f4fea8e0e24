"""The arguments of attention kernels: the tensors of a layer's KV pages, and its options."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from torch import Tensor

PLAIN = "plain"

_Position = TypeVar("_Position", int, Tensor)


class PageTensors(NamedTuple):
    """Keys or values of a layer: elements[num_blocks, Hkv, block_size, D] in the model's dtype; or
    int8 codes, with `form` "int8" or "fp8" (its bits), and scales[num_blocks, Hkv, block_size] in
    bfloat16."""

    elements: Tensor
    form: str = PLAIN
    scales: Tensor | None = None


class AttentionOptions(NamedTuple):
    """Variants of one layer. window: most recent keys visible, the query's own included. chunk:
    keys of the query's own chunk of so many positions are visible, from position 0 on; at most one
    of both is set.
    softcap: scores become softcap * tanh(scores / softcap). sinks[Hq]: one extra score per head
    that takes part in the softmax and has no value."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    chunk: int | None = None

    @property
    def most_keys(self) -> int | None:
        """Keys that a query sees at most; None: all before it."""
        return self.window if self.chunk is None else self.chunk

    def first_key(self, position: _Position) -> _Position:
        """Position of the first visible key for queries at `position`; below 0 where a window
        begins before the sequence."""
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        if self.window is not None:
            return position - self.window + 1
        return position * 0
