"""Weights and codes to multiply, and what a product of them may differ by."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.numerics.codes import FloatCodes, IntCodes
from engine.numerics.rounding import round_fp8, round_nf4

EPSILON = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of rounding once


def made(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 977 + inputs * 31 + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def is_exact_but_for_rounding(
    found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> bool:
    """Within one rounding of the product in float64, and what float32 loses in adding up."""
    wide = None if bias is None else bias.double()
    exact = F.linear(x.double(), weight.double(), wide)
    sizes = F.linear(x.double().abs(), weight.double().abs(), None if wide is None else wide.abs())
    allowed = EPSILON[found.dtype] * exact.abs() + 1e-5 * sizes + 1e-6
    return bool(((found.double() - exact).abs() <= allowed).all())


def random_codes(bits: int, outputs: int, inputs: int, group: int, has_zeros: bool) -> IntCodes:
    generator = torch.Generator().manual_seed(outputs * 977 + inputs + bits)
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    shape = (outputs, inputs // group)
    scales = (torch.rand(shape, generator=generator) * 0.02 + 0.001).to(torch.bfloat16)
    zeros = torch.randint(0, 1 << bits, shape, generator=generator, dtype=torch.uint8)
    return IntCodes(bits, codes, scales, zeros if has_zeros else None, group)


CODED = {
    "fp8 per output": round_fp8,
    "fp8 per tensor": lambda w: round_fp8(w, per_output=False),
    "fp8 in blocks": lambda w: in_blocks(w, 32),
    "nf4": round_nf4,
    "another table": lambda w: replace(
        round_nf4(w, block_size=16), table=torch.linspace(-3, 2.5, 16)
    ),
    "4 bits": lambda w: of_integers(w, 4, 32, False, torch.bfloat16),
    "4 bits, scales in float16": lambda w: of_integers(w, 4, 64, False, torch.float16),
    "4 bits, zero points": lambda w: of_integers(w, 4, 32, True, torch.bfloat16),
    "4 bits, pairs": lambda w: of_integers(w, 4, 2, True, torch.float32),
    "4 bits, one group": lambda w: of_integers(w, 4, w.shape[1], True, torch.float32),
    "8 bits": lambda w: of_integers(w, 8, 64, False, torch.float16),
    "8 bits, zero points": lambda w: of_integers(w, 8, 32, True, torch.bfloat16),
    "8 bits, one group": lambda w: of_integers(w, 8, w.shape[1], True, torch.float32),
    "8 bits, a group an input": lambda w: of_integers(w, 8, 1, True, torch.float32),
}


def of_integers(
    weight: Tensor, bits: int, group: int, has_zeros: bool, scales: torch.dtype
) -> IntCodes:
    """Any codes, zero points far from the middle among them, of its shape."""
    codes = random_codes(bits, *weight.shape, group, has_zeros)
    return replace(codes, scales=codes.scales.to(scales))


def in_blocks(weight: Tensor, size: int) -> FloatCodes:
    """As DeepSeek publishes it, in smaller blocks."""
    rows, columns = -(-weight.shape[0] // size), weight.shape[1] // size
    scales = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) + 0.1
    return FloatCodes(weight.to(torch.float8_e4m3fn), scales, (size, size))
