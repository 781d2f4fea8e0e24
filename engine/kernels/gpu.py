"""How the products with packed weights share out their work on a GPU.

A plan depends on the weight and on the device, never on the number of rows: so a row's result does
not depend on how many are with it.
"""

from __future__ import annotations

import torch

from engine.kernels import rows8
from engine.kernels.packed_codes import Packed, Plan
from engine.kernels.registry import Choice, uses_triton
from engine.kernels.triton.support import device_of, problem

FEW_ROWS = 16
"""Rows of the smallest tile on the tensor cores: up to here a product costs what one row does."""

TILE_ROWS = 128
"""Rows of the largest product in tiles; above, a stripe made plain is shared by enough rows to pay.
Fewer where that was measured."""


Family = tuple[str, str, tuple[int, int], int]

measured_tile_rows: dict[Family, int] = {}
"""What `engine.kernels.gpu_measure` found when weights were loaded."""


def family(held: Packed) -> Family:
    """What a measurement counts for: the device, the format and the shape."""
    return str(held.words.device), held.format, held.shape, held.group


def tile_rows(held: Packed) -> int:
    """The most rows that are multiplied in tiles."""
    return measured_tile_rows.get(family(held), TILE_ROWS)


def one_row_plan(held: Packed) -> Plan:
    return _plan(held, block_n=32, warps=4, stages=4, wanted=2.0)


def few_rows_plan(held: Packed) -> Plan:
    return _plan(held, block_n=64, warps=4, stages=3, wanted=2.0)


def tile_plan(held: Packed) -> Plan:
    return _plan(held, block_n=64, warps=4, stages=2, wanted=1.0)


def _plan(held: Packed, *, block_n: int, warps: int, stages: int, wanted: float) -> Plan:
    """Inputs are split where outputs alone give too few programs to keep all multiprocessors
    reading; a split costs a pass over its sums."""
    programs = -(-held.shape[0] // block_n)
    sms = device_of(held.words.device).num_sms
    if programs >= 0.9 * sms:
        splits = 1
    else:
        splits = min(held.num_blocks, max(1, round(wanted * sms / programs)))
        splits = -(-held.num_blocks // -(-held.num_blocks // splits))  # none without work
    return Plan(block_n, splits, warps, stages)


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
