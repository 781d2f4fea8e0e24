"""What kernels are compared with: codes drawn at random, products in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.numerics.codes import NF4_TABLE, FloatCodes, IntCodes, TableCodes


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, or integers that no product gives: what no kernel wrote is seen."""
    own = Tensor.new_empty

    def new_empty(self: Tensor, *size: int, **options: object) -> Tensor:
        found = own(self, *size, **options)
        return found.fill_(float("nan") if found.is_floating_point() else 99)

    monkeypatch.setattr(Tensor, "new_empty", new_empty)


def random_ints(
    bits: int, outputs: int, inputs: int, group: int, seed: int, *, with_zeros: bool
) -> IntCodes:
    generator = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group)
    highest = 2**bits

    def codes(*shape: int) -> Tensor:
        return torch.randint(0, highest, shape, generator=generator, dtype=torch.uint8)

    scales = torch.rand(outputs, groups, generator=generator).mul_(0.2).add_(0.01)
    zeros = codes(outputs, groups) if with_zeros else None
    return IntCodes(bits, codes(outputs, inputs), scales.half(), zeros, group)


def random_floats(outputs: int, inputs: int, block: tuple[int, int], seed: int) -> FloatCodes:
    """Any float8 but NaN: with zeros of both signs, and numbers below the least normal one."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (outputs, inputs), generator=generator, dtype=torch.uint8)
    values[values & 0x7F == 0x7F] = 0x80
    shape = (-(-outputs // block[0]), -(-inputs // block[1]))
    scales = torch.rand(shape, generator=generator).add_(0.01)
    return FloatCodes(values.view(torch.float8_e4m3fn), scales, block)


def random_table(outputs: int, inputs: int, block: int, seed: int) -> TableCodes:
    """Places in the table of NF4, with a scale per block along the flattened matrix."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
    scales = torch.rand(-(-outputs * inputs // block), generator=generator).add_(0.01)
    return TableCodes(codes, scales, block, torch.tensor(NF4_TABLE))


def random_rows(
    rows: int, width: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(rows, width, generator=generator).to(device, dtype)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||; NaN anywhere gives NaN, which is no pass."""
    difference = found.double().cpu() - expected.double().cpu()
    return float(difference.norm() / expected.double().norm())


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
