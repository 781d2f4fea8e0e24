"""From codes to the form in which this device multiplies them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels import int4, int8
from engine.kernels.grouped import Fp8Weights, GroupedWeights, TableWeights
from engine.kernels.weights import PlainWeights, StackedWeights, Weights
from engine.quantization.codes import Codes, FloatCodes, IntCodes, TableCodes, stack


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

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._weights.product(x.index_select(-1, self._order), bias)

    def dense(self) -> Tensor:
        plain = self._weights.dense()
        return torch.empty_like(plain).index_copy_(1, self._order.long(), plain)


def hold(parts: Sequence[Codes | Tensor], dtype: torch.dtype) -> Weights:
    """The weight whose rows are those of `parts` (codes, or plain tensors [n, in]), for
    activations in `dtype`."""
    codes = [part for part in parts if not isinstance(part, Tensor)]
    joined = stack(codes) if len(codes) == len(parts) else None
    if joined is not None:
        return _hold(joined, dtype)
    held = [
        PlainWeights(part.to(dtype)) if isinstance(part, Tensor) else _hold(part, dtype)
        for part in parts
    ]
    return held[0] if len(held) == 1 else StackedWeights(held)


def _hold(codes: Codes, dtype: torch.dtype) -> Weights:
    if isinstance(codes, FloatCodes):
        return Fp8Weights(codes, dtype)
    if isinstance(codes, TableCodes):
        return TableWeights(codes, dtype)
    ordered, order = codes.grouped()
    weights = _hold_integers(ordered, dtype)
    return weights if order is None else ReorderedWeights(weights, order)


def _hold_integers(codes: IntCodes, dtype: torch.dtype) -> Weights:
    if int8.fits(codes) and int8.is_supported():
        return int8.Int8Weights(codes, dtype)
    if int4.fits(codes) and int4.panel_size():
        return int4.Int4Weights(codes, dtype)
    return GroupedWeights(codes, dtype)
