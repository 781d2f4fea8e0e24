"""The weight of a linear layer in another form than a plain tensor: the interface, and weights that
are made of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


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
        """Bytes of memory."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., in] @ weight^T + bias [out]; result [..., out] in x's dtype."""
        result = self.multiply(x.reshape(-1, self.shape[1]).contiguous(), bias)
        return result.view(*x.shape[:-1], self.shape[0])

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """`product` of contiguous rows x [T, in]: [T, out], contiguous."""

    @abstractmethod
    def dense(self) -> Tensor:
        """A plain copy [out, in] in `dtype`."""


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

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = [None] * len(self._parts) if bias is None else bias.split(self._sizes)
        found = [part.multiply(x, b) for part, b in zip(self._parts, biases, strict=True)]
        return torch.cat(found, dim=-1)

    def dense(self) -> Tensor:
        return torch.cat([part.dense() for part in self._parts])


class ReorderedWeights(Weights):
    """Weights whose inputs are in another order: column j multiplies x[..., order[j]]."""

    def __init__(self, weights: Weights, order: Tensor) -> None:
        self._weights, self._order = weights, order.to(torch.int32)
        self.shape, self.dtype = weights.shape, weights.dtype

    @property
    def title(self) -> str:
        return f"{self._weights.title}, by activation order"

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes + self._order.nbytes

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._weights.multiply(x.index_select(-1, self._order), bias)

    def dense(self) -> Tensor:
        plain = self._weights.dense()
        return torch.empty_like(plain).index_copy_(1, self._order.long(), plain)
