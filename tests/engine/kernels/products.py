"""Weights and codes to multiply, and what a product of them may differ by."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.numerics.codes import IntCodes

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
