"""Converts codes to the form that a device multiplies fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.cpu.check import library
from engine.kernels.cpu.dequantized import DequantizedWeights
from engine.kernels.cpu.dequantized import fits as dequantized_fits
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.cpu.integer import fits as native_fits
from engine.kernels.linear import PlainWeights
from engine.kernels.packed import PackedWeights, measure_tile_rows
from engine.kernels.packed_codes import fits as packed_fits
from engine.kernels.per_channel import Fp8PerChannel, Int8PerChannel
from engine.kernels.tiled import Fp8Weights, GroupedWeights, TableWeights
from engine.kernels.triton.support import is_usable
from engine.kernels.weights import ReorderedWeights, StackedWeights, Weights
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes, moved, stack


def make_weights(
    parts: Sequence[Codes | Tensor], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """The weight whose rows are those of `parts` (codes, or plain tensors [n, in]), for
    activations in `dtype` on `device`, wherever the parts are."""
    device = torch.device(device)
    joined = _joined(parts)
    if joined is not None:
        return _make(joined, dtype, device)
    made = [
        PlainWeights(part.to(device, dtype))
        if isinstance(part, Tensor)
        else _make(part, dtype, device)
        for part in parts
    ]
    return made[0] if len(made) == 1 else StackedWeights(made)


def make_expert_weights(
    parts: Sequence[Codes | Tensor], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """`make_weights` for one of a mixture's experts: in the form in which a GPU multiplies them
    together, where they fit it."""
    device = torch.device(device)
    joined = _joined(parts)
    if joined is not None and is_usable(device) and packed_fits(joined):
        return PackedWeights(joined, dtype, device)
    return make_weights(parts, dtype, device)


def _joined(parts: Sequence[Codes | Tensor]) -> Codes | None:
    codes = [part for part in parts if not isinstance(part, Tensor)]
    return stack(codes) if len(codes) == len(parts) else None


def _make(codes: Codes, dtype: torch.dtype, device: torch.device) -> Weights:
    order = None
    if isinstance(codes, IntCodes):
        codes, order = codes.grouped()
    weights = None
    if is_usable(device):
        weights = make_for_gpu(codes, dtype, device)
    elif device.type == "cpu":
        codes = moved(codes, device)
        weights = _compiled(codes, dtype)
    if weights is None:
        weights = _tiled(moved(codes, device), dtype)
    return weights if order is None else ReorderedWeights(weights, order.to(device))


def make_for_gpu(codes: Codes, dtype: torch.dtype, device: torch.device) -> Weights | None:
    """For Triton's kernels; None where they do not multiply these codes."""
    if isinstance(codes, IntCodes) and codes.is_int8_per_output:
        return Int8PerChannel(codes, dtype, device)
    if isinstance(codes, FloatCodes) and Fp8PerChannel.fits(codes, dtype, device):
        return Fp8PerChannel(codes, dtype, device)
    if not packed_fits(codes):
        return None
    packed = PackedWeights(codes, dtype, device)
    measure_tile_rows(packed)
    return packed


def _compiled(codes: Codes, dtype: torch.dtype) -> Weights | None:
    """For the compiled CPU kernels; None where they do not multiply these codes."""
    native = library()
    if native is None:
        return None
    if isinstance(codes, IntCodes) and native_fits(codes, dtype):
        return IntegerWeights.of(codes, dtype, native)
    return DequantizedWeights(codes, dtype, native) if dequantized_fits(codes, dtype) else None


def _tiled(codes: Codes, dtype: torch.dtype) -> Weights:
    if isinstance(codes, FloatCodes):
        return Fp8Weights(codes, dtype)
    if isinstance(codes, TableCodes):
        return TableWeights(codes, dtype)
    return GroupedWeights(codes, dtype)
