"""Weights of 8 bits, a scale per output; activations rounded to 8 bits, a scale per row.

    y[t, n] = (sum_k u[t, k] * q[n, k]  -  128 * sum_k q[n, k]) * weight_scale[n] * row_scale[t]

The sum is one of integers, exact in any order: a token's result does not depend on what else is in
the step. oneDNN multiplies them (VNNI on x86); activations have to be unsigned with zero point 128,
for signed ones it takes a path that is a thousand times slower.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engine.kernels.weights import Weights
from engine.numerics.codes import IntCodes

_ZERO_POINT = 128
_HALF_UP = torch.tensor(_ZERO_POINT + 0.5)
_LARGEST = torch.tensor(127.0)
_CACHED = 2**18  # activations that are rounded at a time, so that each pass finds them in the cache


class Int8Weights(Weights):
    """Symmetric int8 per output, in oneDNN's layout."""

    def __init__(self, codes: IntCodes, dtype: torch.dtype) -> None:
        assert fits(codes)
        self.shape, self.dtype = codes.shape, dtype
        self._packed = pack(codes)
        self._scales = codes.scales.float().view(-1)

    @property
    def title(self) -> str:
        return "int8"

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] + self._scales.nbytes

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows, scales = quantize_rows(x.reshape(-1, self.shape[1]))
        result = multiply(rows, scales, self._packed, self._scales, x.dtype)
        if bias is not None:
            result += bias
        return result.view(*x.shape[:-1], self.shape[0])

    def dense(self) -> Tensor:
        return unpack(self._packed).float().mul_(self._scales.unsqueeze(1)).to(self.dtype)


def fits(codes: IntCodes) -> bool:
    """Whether `codes` are symmetric int8 with one scale per output."""
    return codes.bits == 8 and codes.is_symmetric and codes.scales.shape[1] == 1


def pack(codes: IntCodes) -> Tensor:
    """An opaque tensor in the layout of the product."""
    signed = codes.codes.contiguous().view(torch.int8) ^ -128  # as a byte less 128
    packed: Tensor = torch.ops.onednn.qlinear_prepack(signed, None)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """int8 [N, K] of what `pack` made."""
    return packed.to_dense().t()


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] as uint8 around 128, and the scale float32 [T, 1] of each row. A row of zeros stays
    zero; NaN and infinity give a scale that is not finite, and so reach the result."""
    if x.numel() <= _CACHED:
        return _quantized(x)
    at_once = max(1, _CACHED // x.shape[1])
    rows = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty(len(x), 1)
    for start in range(0, len(x), at_once):
        end = start + at_once
        rows[start:end], scales[start:end] = _quantized(x[start:end])
    return rows, scales


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    # in float32 from the start: an operation on unlike dtypes converts each of its operands anew
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)  # a third of what the norm of infinity takes
    steps = _LARGEST.div(largest.clamp_min_(1e-30))
    scaled = torch.mul(wide, steps) if wide is x else wide.mul_(steps)  # x is the caller's
    # half up by truncation; between 1 and 255
    return scaled.add_(_HALF_UP).to(torch.uint8), largest.div_(_LARGEST)


def multiply(
    rows: Tensor, scales: Tensor, packed: Tensor, weight_scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """rows uint8 [T, K] with scales [T, 1] by a packed weight with weight_scales [N]: [T, N]."""
    return sums(rows, packed, weight_scales).mul_(scales).to(dtype)


def sums(rows: Tensor, packed: Tensor, weight_scales: Tensor) -> Tensor:
    """`multiply` before the rows' scales, float32 [T, N]."""
    zeros = _no_zeros(weight_scales.shape[0])
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, _ZERO_POINT, packed, weight_scales, zeros, None, 1.0, 0, torch.float32,
        "none", [], "",
    )  # fmt: skip
    return product


@cache
def is_supported() -> bool:
    """Whether torch has these operations on this CPU and they are exact.

    They are not part of torch's public interface (its compiler uses them). Without VNNI, sums of
    two products overflow 16 bits in some libraries: the largest codes are tried.
    """
    codes = torch.full((32, 64), 255, dtype=torch.uint8)
    codes[::2, ::3] = 1
    weights = IntCodes(8, codes, torch.ones(32, 1), None, 64)
    x = torch.full((3, 64), 127.0)
    x[1, ::2] = -127.0
    try:
        packed = pack(weights)
        rows, scales = quantize_rows(x)
        found = multiply(rows, scales, packed, torch.ones(32), torch.float32)
        expected = x @ weights.dequantize().t()
        signed = codes.to(torch.int16) - 128
        return torch.equal(found, expected) and torch.equal(unpack(packed).short(), signed)
    except (AttributeError, RuntimeError):
        return False


@cache
def _no_zeros(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros(count, dtype=torch.int32)
