"""The weight of a linear layer in a form of its own: 16 bits in blocks, or fewer bits.

    linear.py     Linear: a layer, whose weight is plain or held as one of these
    weights.py    what they have in common; weights in oneDNN's blocks; parts of unlike forms
    native/       on x86: 4 and 8 bits in groups, int8 per output, float8, NF4, and plain weights of
                  16 bits, by code compiled here; the CPU's others are for where there is none
    int8.py       8 bits a weight and 8 bits an activation, multiplied as integers
    int4.py       4 bits in groups, multiplied from their packed form
    grouped.py    any other codes, made plain tile by tile while they are multiplied
    packed.py     on a GPU: 4 and 8 bits in groups, float8 in blocks, NF4
    rows8.py      on a GPU: int8 and float8 with one scale per output
    experts.py    on a GPU: the packed weights of all experts of a mixture
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels import blocked
from engine.kernels.registry import choose_blocked
from engine.kernels.tiles import many_rows


class Weights(ABC):
    """A weight [out, in]. `dtype` is that of its plain form and of the activations."""

    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    @abstractmethod
    def title(self) -> str:
        """Number format for people: "int8", "4 bits, groups of 128"."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory behind it."""

    @abstractmethod
    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., in] @ weight^T + bias [out]; result [..., out] in x's dtype."""

    @abstractmethod
    def dense(self) -> Tensor:
        """A plain copy [out, in] in `dtype`."""


class BlockedWeights(Weights):
    """In the order in which oneDNN's products read it (`engine.kernels.blocked`)."""

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        self._blocked = blocked.block(weight)

    @property
    def title(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        name = choose_blocked(self.dtype, x.numel() // x.shape[-1])
        return BLOCKED_IMPLEMENTATIONS[name](x, self._blocked, bias)

    def dense(self) -> Tensor:
        return blocked.unblock(self._blocked)


class StackedWeights(Weights):
    """Parts with the same inputs and of unlike forms, row after row, each multiplied by itself."""

    def __init__(self, parts: Sequence[Weights]) -> None:
        self._parts = list(parts)
        self._sizes = [part.shape[0] for part in parts]
        self.shape = (sum(self._sizes), parts[0].shape[1])
        self.dtype = parts[0].dtype

    @property
    def title(self) -> str:
        return " and ".join(dict.fromkeys(part.title for part in self._parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = [None] * len(self._parts) if bias is None else bias.split(self._sizes)
        found = [part.product(x, b) for part, b in zip(self._parts, biases, strict=True)]
        return torch.cat(found, dim=-1)

    def dense(self) -> Tensor:
        return torch.cat([part.dense() for part in self._parts])


class PlainWeights(Weights):
    """A plain tensor, as a part beside others that are not."""

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        self._weight = weight

    @property
    def title(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        from engine.kernels.linear import linear

        return linear(x, self._weight, bias)

    def dense(self) -> Tensor:
        return self._weight.clone()


def unblocked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """With a weight in blocks that is made plain again, which pays for many rows."""
    plain = blocked.unblock(weight)
    return many_rows(
        x, lambda tile, start: tile.copy_(plain[start : start + len(tile)]), len(plain), bias
    )


BLOCKED_IMPLEMENTATIONS = {"onednn": blocked.product, "unblocked": unblocked}
"""For weights in blocks."""
