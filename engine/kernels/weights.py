"""The interface of a linear layer's weight in any form but a plain tensor, and weights that combine
others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Weights(ABC):
    """A weight [out, in]. dtype: of its dense form and of the activations. title: the number format
    for people ("int8", "int4, groups of 128"). parts: the tensors that it keeps in memory."""

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, title: str, *parts: Tensor | Weights | None
    ) -> None:
        self.shape, self.dtype, self.title = (shape[0], shape[1]), dtype, title
        self.nbytes: int = sum(part.nbytes for part in parts if part is not None)

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
    """Weights with the same inputs and different formats, stacked along the outputs; each is
    multiplied separately."""

    def __init__(self, parts: Sequence[Weights]) -> None:
        self._parts = list(parts)
        self._sizes = [part.shape[0] for part in parts]
        title = " and ".join(dict.fromkeys(part.title for part in parts))
        super().__init__((sum(self._sizes), parts[0].shape[1]), parts[0].dtype, title, *parts)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = [None] * len(self._parts) if bias is None else bias.split(self._sizes)
        found = [part.multiply(x, b) for part, b in zip(self._parts, biases, strict=True)]
        return torch.cat(found, dim=-1)

    def dense(self) -> Tensor:
        return torch.cat([part.dense() for part in self._parts])


class ReorderedWeights(Weights):
    """Weights with reordered inputs: column j multiplies x[..., order[j]]."""

    def __init__(self, weights: Weights, order: Tensor) -> None:
        self._weights, self._order = weights, order.to(torch.int32)
        title = f"{weights.title}, activation order"
        super().__init__(weights.shape, weights.dtype, title, weights, self._order)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._weights.multiply(x.index_select(-1, self._order), bias)

    def dense(self) -> Tensor:
        plain = self._weights.dense()
        return torch.empty_like(plain).index_copy_(1, self._order.long(), plain)
