"""Packed weights on a GPU: 4 and 8 bits in groups, float8 and NF4, with 16-bit activations.

The kernel depends on the number of rows, which decides what limits a matmul:

    1                 memory-bound: each thread sums what it read, no tensor cores
    up to FEW_ROWS    memory-bound: weights are dequantized in registers, once for all rows
    up to TILE_ROWS   the same with a tile of all rows, on the tensor cores
    more              compute-bound: chunks of the weight are dequantized, then torch multiplies

Within the first two, a row's result does not depend on the number of rows, nor within the last as
far as torch's matmul guarantees it; between them rounding differs. A kernel's launch plan depends
on the weight and the device, never on the number of rows.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.kernels.packed_codes import Packed, Plan, pack
from engine.kernels.triton.support import device_of
from engine.kernels.weights import Weights
from engine.numerics.codes import Codes

STRIPE_BYTES = 32 * 2**20
"""Of a stripe of plain weights: fills the GPU, and is little beside the weight's own memory."""

FEW_ROWS = 16
"""Rows of the smallest tile on the tensor cores: up to here a product costs what one row does."""

TILE_ROWS = 128
"""Rows of the largest product in tiles; above, a stripe made plain is shared by enough rows to pay.
Fewer where that was measured."""

_MEASURED_ROWS = (32, 64, 128)
_WARM_UP, _TURNS = 3, 7
_measuring = threading.Lock()

Family = tuple[str, str, tuple[int, int], int]

measured_tile_rows: dict[Family, int] = {}
"""What `measure_tile_rows` found when weights were loaded."""


def family(held: Packed) -> Family:
    """Weights that share one measurement: device, format and shape."""
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


class PackedWeights(Weights):
    """Codes in the layout of the kernels of `engine.kernels.triton.packed`."""

    def __init__(self, codes: Codes, dtype: torch.dtype, device: torch.device) -> None:
        self.packed: Packed = pack(codes, device)
        held = self.packed
        parts = (held.words, held.scales, held.zeros, held.table)
        super().__init__(codes.shape, dtype, codes.title, *parts)
        self._tile_rows: int | None = None

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        flat = x.reshape(-1, self.shape[1])
        if flat.stride(-1) != 1:  # rows may lie apart
            flat = flat.contiguous()
        result = self.multiply(flat, bias)
        return result.view(*x.shape[:-1], self.shape[0])

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.by_name(self.choose(len(x)), x, bias)

    def choose(self, rows: int) -> str:
        """Name of the implementation for `rows` rows."""
        if rows == 1:
            return "one row"
        if rows <= FEW_ROWS:
            return "few rows"
        if self._tile_rows is None:
            self._tile_rows = tile_rows(self.packed)
        return "tile" if rows <= self._tile_rows else "stripes"

    def by_name(self, name: str, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] by an implementation that `choose` names: [T, out]."""
        from engine.kernels.triton import packed as kernels

        held = self.packed
        if name == "one row":
            return kernels.one_row(x, held, bias, one_row_plan(held))
        if name == "few rows":
            return kernels.tiled(x, held, bias, few_rows_plan(held))
        if name == "tile":
            return kernels.tiled(x, held, bias, tile_plan(held))
        return self._in_stripes(x, bias)

    def _in_stripes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        outputs, inputs = self.shape
        at_once = min(outputs, max(64, STRIPE_BYTES // (inputs * x.element_size()) // 64 * 64))
        result = x.new_empty(len(x), outputs)
        stripe = x.new_empty(inputs, at_once)
        for start in range(0, outputs, at_once):
            end = min(start + at_once, outputs)
            plain = self._plain(stripe[:, : end - start], start)
            if bias is None:
                torch.mm(x, plain, out=result[:, start:end])
            else:
                torch.addmm(bias[start:end], x, plain, out=result[:, start:end])
        return result

    def dense(self) -> Tensor:
        outputs, inputs = self.shape
        plain = torch.empty(inputs, outputs, dtype=self.dtype, device=self.packed.words.device)
        return self._plain(plain, 0).t().contiguous()

    def _plain(self, out: Tensor, start: int) -> Tensor:
        from engine.kernels.triton.packed import make_plain

        make_plain(self.packed, start, out)
        return out


def measure_tile_rows(weights: PackedWeights) -> None:
    """Find up to how many rows a tile is faster than stripes made plain, once per shape; nothing
    is measured without a GPU, or where its memory does not suffice."""
    held = weights.packed
    if held.words.device.type != "cuda":
        return
    with _measuring:
        key = family(held)
        if key in measured_tile_rows:
            return
        rows = FEW_ROWS
        try:
            for count in _MEASURED_ROWS:
                x = activations(weights, count)
                tile = milliseconds([partial(weights.by_name, "tile", x, None)])
                if milliseconds([partial(weights.by_name, "stripes", x, None)]) < tile:
                    break
                rows = count
        except torch.OutOfMemoryError:
            return
        measured_tile_rows[key] = rows


def milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median time of one call on the current GPU, taking turns among `calls`."""
    for index in range(_WARM_UP):
        calls[index % len(calls)]()
    times = []
    for turn in range(_TURNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        calls[turn % len(calls)]()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def activations(weights: PackedWeights, rows: int) -> Tensor:
    """Random x [rows, in], to measure with."""
    device = weights.packed.words.device
    return torch.randn(rows, weights.shape[1], dtype=weights.dtype, device=device)
