"""What computes the products and the small operations on an NVIDIA GPU, for people to read."""

from __future__ import annotations

import torch

from engine.kernels import rows8
from engine.kernels.gpu_plans import FEW_ROWS, TILE_ROWS
from engine.kernels.select import Choice, uses_triton
from engine.kernels.triton.support import device_of, problem

_FLOAT8 = (8, 9)


def product_choices(device: torch.device) -> list[Choice]:
    """The choices on one GPU."""
    if not uses_triton(device):
        why = f"{problem(device)}: made plain in stripes, then torch's product"
        return [Choice(f"linear, few bits, {device}", "any", 1, "stripes", why)]
    packed = f"linear, packed 4 and 8 bits and nf4, {device}"
    integers, floats = f"linear, int8, {device}", f"linear, fp8, {device}"
    many = rows8.FEW_ROWS + 1
    found = [
        Choice(packed, "any", 1, "one row", "limited by reading: no tensor cores"),
        Choice(packed, "any", 2, "few rows", "each weight is read once, made plain in registers"),
        Choice(packed, "any", FEW_ROWS + 1, "tile", "the same in tiles of up to 64 rows"),
        Choice(
            packed, "any", TILE_ROWS + 1, "stripes",
            "limited by arithmetic: made plain, then torch's product; from fewer rows where that "
            "was measured to be faster when the weight was loaded",
        ),
        Choice(integers, "any", 1, "triton", "integers, exact; activations are rounded by row"),
        Choice(integers, "any", many, "torch", "the same integers by torch's product"),
        Choice(floats, "any", 1, "triton", "limited by reading: activations stay as they are"),
    ]  # fmt: skip
    if device_of(device).capability >= _FLOAT8:
        why = "one scale per output: activations are rounded to float8 by row"
        found.append(Choice(floats, "bfloat16", many, "torch", why))
    small = "norm, rotary, gated activation"
    found.append(Choice(f"{small}, {device}", "any", 1, "triton", "one launch each"))
    return found
