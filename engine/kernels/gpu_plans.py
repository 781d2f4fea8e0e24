"""How the products with packed weights share out their work on a GPU.

A plan depends on the weight and on the device, never on the number of rows: so a row's result does
not depend on how many are with it.
"""

from __future__ import annotations

from engine.kernels.packed_codes import Packed, Plan
from engine.kernels.triton.support import device_of

FEW_ROWS = 16
"""Rows of the smallest tile on the tensor cores: up to here a product costs what one row does."""

TILE_ROWS = 128
"""Rows of the largest tile; above, a stripe made plain is shared by enough rows to pay."""


def tile_rows(held: Packed) -> int:
    """The most rows that are multiplied in one tile."""
    return TILE_ROWS


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
