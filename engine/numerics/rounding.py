"""Quantization by rounding to nearest, without calibration."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.numerics.codes import NF4_TABLE, FloatCodes, IntCodes, TableCodes

FP8_MAX = 448.0  # of float8_e4m3fn
NF4_BLOCK = 64  # as bitsandbytes
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""Largest relative difference (2-norm) between two ways to compute the same hidden states."""


def round_int8(weight: Tensor) -> IntCodes:
    """Symmetric int8 per output: the largest magnitude of a row becomes 127. weight [N, K]."""
    return round_symmetric(weight, bits=8, group_size=weight.shape[1])


def round_symmetric(weight: Tensor, *, bits: int, group_size: int) -> IntCodes:
    """Symmetric, without zero points: the largest magnitude of a group becomes 2**(bits-1) - 1."""
    groups = in_groups(weight.float(), group_size)
    top = 2 ** (bits - 1) - 1
    scales = _at_least(groups.abs().amax(-1) / top)
    codes = (groups / scales.unsqueeze(-1)).round_().clamp_(-top, top).add_(top + 1)
    return IntCodes(bits, _joined(codes, weight), scales, None, group_size)


def round_asymmetric(weight: Tensor, *, bits: int, group_size: int) -> IntCodes:
    """With zero points: a group's range, widened to hold 0, is cut into 2**bits - 1 steps."""
    groups = in_groups(weight.float(), group_size)
    lowest, highest = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    return round_between(weight, lowest, highest, bits=bits, group_size=group_size)


def round_between(
    weight: Tensor, lowest: Tensor, highest: Tensor, *, bits: int, group_size: int
) -> IntCodes:
    """As `round_asymmetric` with the range [N, G] of each group given; what is outside it is
    clipped. `lowest` <= 0 <= `highest`."""
    top = 2**bits - 1
    # in float16, as every file format stores it: readers get the same values
    scales = _at_least((highest - lowest) / top).to(torch.float16).float()
    zeros = (-lowest / scales).round_().clamp_(0, top)
    groups = in_groups(weight.float(), group_size)
    codes = (groups / scales.unsqueeze(-1)).round_().add_(zeros.unsqueeze(-1)).clamp_(0, top)
    return IntCodes(
        bits, _joined(codes, weight), scales.to(torch.float16), zeros.to(torch.uint8), group_size
    )


def round_fp8(weight: Tensor, *, per_output: bool = True) -> FloatCodes:
    """float8_e4m3fn with a scale per output, or one for all. weight [N, K]."""
    largest = weight.float().abs()
    largest = largest.amax(1, keepdim=True) if per_output else largest.amax().view(1, 1)
    scales = _at_least(largest / FP8_MAX)
    values = (weight.float() / scales).to(torch.float8_e4m3fn)
    block = (1 if per_output else weight.shape[0], weight.shape[1])
    return FloatCodes(values, scales, block)


def round_nf4(weight: Tensor, block_size: int = NF4_BLOCK) -> TableCodes:
    """The nearest of NF4's 16 values, with the largest magnitude of each block as its scale."""
    flat = weight.float().reshape(-1)
    padding = -flat.numel() % block_size
    blocks = torch.nn.functional.pad(flat, (0, padding)).view(-1, block_size)
    scales = blocks.abs().amax(-1)
    table = torch.tensor(NF4_TABLE, device=weight.device)
    borders = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(blocks / _at_least(scales).unsqueeze(-1), borders, out_int32=True)
    codes = codes.to(torch.uint8).view(-1)[: flat.numel()].view(weight.shape)
    return TableCodes(codes, scales, block_size, table)


def in_groups(weight: Tensor, group_size: int) -> Tensor:
    """[N, K] as [N, G, group_size]; a last group that is shorter is filled with zeros."""
    padding = -weight.shape[1] % group_size
    if padding:
        weight = torch.nn.functional.pad(weight, (0, padding))
    return weight.reshape(weight.shape[0], -1, group_size)


def _joined(codes: Tensor, weight: Tensor) -> Tensor:
    flat = codes.to(torch.uint8).flatten(1)
    return flat if flat.shape == weight.shape else flat[:, : weight.shape[1]].contiguous()


def _at_least(scales: Tensor) -> Tensor:
    """A group of zeros must not divide by zero; 1e-7 is a number in float16 too (rounded)."""
    return scales.clamp_min(1e-7)


_BITS = {
    torch.bfloat16: (torch.int16, 4, 0x87F0 - 2**16),
    torch.float32: (torch.int32, 20, 0x87F00000 - 2**32),
}


def decode(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of `codes`, which are int8, in bfloat16 or float32."""
    return decode_into(codes, torch.empty(codes.shape, dtype=dtype, device=codes.device))


def decode_into(codes: Tensor, out: Tensor) -> Tensor:
    """`out`, bfloat16 or float32 of the shape of `codes`, filled with their numbers."""
    integer, shift, mask = _BITS[out.dtype]
    out.view(integer).copy_(codes).bitwise_left_shift_(shift).bitwise_and_(mask)
    return out.mul_(2.0**120)


def has_nan(codes: Tensor) -> bool:
    """Whether any of `codes`, int8, means NaN. Makes no copy of them."""
    if not codes.numel():
        return False
    return int(codes.max()) == 0x7F or int(codes.view(torch.uint8).max()) == 0xFF
