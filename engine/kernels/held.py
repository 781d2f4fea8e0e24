"""From codes to the form in which this device multiplies them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels import int4, int8
from engine.kernels.cpu.decoded import DecodedWeights
from engine.kernels.cpu.decoded import fits as decoded_fits
from engine.kernels.cpu.library import library
from engine.kernels.cpu.weights import NativeWeights
from engine.kernels.cpu.weights import fits as native_fits
from engine.kernels.grouped import Fp8Weights, GroupedWeights, TableWeights
from engine.kernels.registry import uses_triton
from engine.kernels.weights import PlainWeights, StackedWeights, Weights
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes, moved, stack


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


def hold(
    parts: Sequence[Codes | Tensor], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """The weight whose rows are those of `parts` (codes, or plain tensors [n, in]), for
    activations in `dtype` on `device`. The parts may lie anywhere; what is held lies there."""
    device = torch.device(device)
    codes = [part for part in parts if not isinstance(part, Tensor)]
    joined = stack(codes) if len(codes) == len(parts) else None
    if joined is not None:
        return _hold(joined, dtype, device)
    held = [
        PlainWeights(part.to(device, dtype))
        if isinstance(part, Tensor)
        else _hold(part, dtype, device)
        for part in parts
    ]
    return held[0] if len(held) == 1 else StackedWeights(held)


def hold_expert(
    parts: Sequence[Codes | Tensor], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """`hold` for one of a mixture's experts: in the form in which a GPU multiplies them together,
    where they fit it."""
    device = torch.device(device)
    codes = [part for part in parts if not isinstance(part, Tensor)]
    joined = stack(codes) if len(codes) == len(parts) else None
    if uses_triton(device) and joined is not None:
        from engine.kernels.packed import PackedWeights, fits

        if fits(joined):
            return PackedWeights(joined, dtype, device)
    return hold(parts, dtype, device)


def _hold(codes: Codes, dtype: torch.dtype, device: torch.device) -> Weights:
    order = None
    if isinstance(codes, IntCodes):
        codes, order = codes.grouped()
    if uses_triton(device):
        weights = _hold_packed(codes, dtype, device)
    else:
        weights = _hold_in_tiles(moved(codes, device), dtype)
    return weights if order is None else ReorderedWeights(weights, order.to(device))


def _hold_packed(codes: Codes, dtype: torch.dtype, device: torch.device) -> Weights:
    """For Triton's kernels."""
    from engine.kernels.gpu_measure import settle
    from engine.kernels.packed import PackedWeights, fits
    from engine.kernels.rows8 import Fp8Rows, Int8Rows

    if isinstance(codes, IntCodes) and int8.fits(codes):
        return Int8Rows(codes, dtype, device)
    if isinstance(codes, FloatCodes) and Fp8Rows.fits(codes, dtype, device):
        return Fp8Rows(codes, dtype, device)
    if fits(codes):
        packed = PackedWeights(codes, dtype, device)
        settle(packed)
        return packed
    return _hold_in_tiles(moved(codes, device), dtype)


def _hold_in_tiles(codes: Codes, dtype: torch.dtype) -> Weights:
    """For the CPU's kernels; elsewhere for torch's, made plain tile by tile."""
    held = codes.values if isinstance(codes, FloatCodes) else codes.codes
    is_cpu = held.device.type == "cpu"
    found = _compiled(codes, dtype) if is_cpu else None
    if found is not None:
        return found
    if isinstance(codes, FloatCodes):
        return Fp8Weights(codes, dtype)
    if isinstance(codes, TableCodes):
        return TableWeights(codes, dtype)
    if is_cpu:
        if int8.fits(codes) and int8.is_supported():
            return int8.Int8Weights(codes, dtype)
        if int4.fits(codes) and int4.panel_size():
            return int4.Int4Weights(codes, dtype)
    return GroupedWeights(codes, dtype)


def _compiled(codes: Codes, dtype: torch.dtype) -> Weights | None:
    """For products that are compiled here; None where there are none for these codes."""
    native = library()
    if native is None:
        return None
    if isinstance(codes, IntCodes) and native_fits(codes, dtype):
        return NativeWeights.of(codes, dtype, native)
    return DecodedWeights(codes, dtype, native) if decoded_fits(codes, dtype) else None
