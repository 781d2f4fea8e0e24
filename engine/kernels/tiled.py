"""Matmuls that dequantize or convert weights tile by tile, with torch: quantized weights without a
compiled kernel, on any device, and 16-bit weights in float32.

Weights stay small in memory; each matmul converts them again.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from engine.kernels.weights import Weights
from engine.numerics import rounding as e4m3
from engine.numerics.codes import FloatCodes, IntCodes, TableCodes

_buffers = threading.local()


def scratch(name: str, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`size` elements, until this thread asks for that name again: a fresh large buffer costs page
    faults in every step."""
    key = f"{name} {dtype}"
    found: Tensor | None = getattr(_buffers, key, None)
    if found is None or found.numel() < size:
        # not an inference tensor, so that it can be written inside and outside inference mode
        with torch.inference_mode(False):
            found = torch.empty(size, dtype=dtype)
        setattr(_buffers, key, found)
    return found[:size]


Fill = Callable[[Tensor, int], object]

# MKL computes W @ x^T for a number of rows between its tile sizes much slower than for the next
# of them: on an AVX2 machine (3072 x 1024) 15 rows take 2.6 ms and 16 take 1.2, 63 take 4.5 and 64
# take 3.0. From _NARROW rows on they are filled up to _LEAST, and from there to multiples of _STEP.
_NARROW, _LEAST, _STEP, _WIDE = 7, 16, 8, 256
TILE_BYTES = 4 * 1024 * 1024  # of float32: stays in the last-level cache
WIDE_TILE_BYTES = 8 * 1024 * 1024
STRIPE_BYTES = 64 * 1024 * 1024  # of float32, on a GPU: enough rows to keep it busy


def few_rows(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """x [..., in] times the weight's transpose, the other way round (W @ x^T), which is faster for
    the few rows of decoding. Accumulates in float32; the result is in x's dtype."""
    num_rows = x.numel() // x.shape[-1]
    flat = widened(x.reshape(-1, x.shape[-1]).float())
    rows, width = flat.shape
    tile_rows = max(1, min(outputs, TILE_BYTES // (4 * width)))
    tile = scratch("tile", tile_rows * width).view(tile_rows, width)
    # transposed, so that each tile writes a contiguous part
    product = scratch("product", outputs * rows).view(outputs, rows)
    columns = flat.t()
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        fill(tile[:count], start)
        torch.mm(tile[:count], columns, out=product[start : start + count])
    if bias is not None:
        product += bias.unsqueeze(1)
    result = torch.empty(num_rows, outputs, dtype=x.dtype, device=x.device)
    result.copy_(product.t()[:num_rows])
    return result.view(*x.shape[:-1], outputs)


def many_rows(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """`few_rows` for many rows (prefill): x @ W^T, so that no result is transposed."""
    flat = x.reshape(-1, x.shape[-1]).float()
    rows, width = flat.shape
    tile_rows = max(1, min(outputs, WIDE_TILE_BYTES // (4 * width)))
    tile = scratch("tile", tile_rows * width).view(tile_rows, width)
    product = scratch("product", rows * tile_rows)
    result = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        fill(tile[:count], start)
        part = product[: rows * count].view(rows, count)
        torch.mm(flat, tile[:count].t(), out=part)
        if bias is not None:
            part += bias[start : start + count]
        result[:, start : start + count].copy_(part)
    return result.view(*x.shape[:-1], outputs)


def in_stripes(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """x [..., in] times the weight's transpose on a GPU, in its dtype. Buffers are fresh in each
    call: torch keeps the memory, and a captured graph needs them to be its own."""
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    at_once = max(1, min(outputs, STRIPE_BYTES // (4 * width)))
    tile = x.new_empty(at_once, width, dtype=torch.float32)
    result = x.new_empty(len(flat), outputs)
    for start in range(0, outputs, at_once):
        end = min(start + at_once, outputs)
        fill(tile[: end - start], start)
        plain = tile[: end - start].to(x.dtype).t()
        if bias is None:
            torch.mm(flat, plain, out=result[:, start:end])
        else:
            torch.addmm(bias[start:end], flat, plain, out=result[:, start:end])
    return result.view(*x.shape[:-1], outputs)


def widened(rows: Tensor) -> Tensor:
    """`rows` with rows of zeros below where a few more rows are faster."""
    count, width = rows.shape
    wanted = max(_LEAST, -(-count // _STEP) * _STEP)
    if count == wanted or not _NARROW <= count <= _WIDE:
        return rows
    wide = rows.new_zeros(wanted, width)
    wide[:count] = rows
    return wide


_MANY = 48  # rows from which x @ W^T is faster than W @ x^T


class TiledWeights(Weights):
    """Weights that can dequantize any of their rows into a float32 buffer."""

    device: torch.device

    @abstractmethod
    def fill(self, tile: Tensor, start: int) -> None:
        """Rows start, start + 1, ... into tile float32 [rows, in]."""

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if x.device.type != "cpu":
            return in_stripes(x, self.fill, self.shape[0], bias)
        compute = few_rows if len(x) < _MANY else many_rows
        return compute(x, self.fill, self.shape[0], bias)

    def dense(self) -> Tensor:
        plain = torch.empty(self.shape, dtype=torch.float32, device=self.device)
        self.fill(plain, 0)
        return plain.to(self.dtype)


class Fp8Weights(TiledWeights):
    """float8_e4m3fn with a scale per output or per block of outputs and inputs."""

    def __init__(self, codes: FloatCodes, dtype: torch.dtype) -> None:
        self._values, self._scales = codes.values.view(torch.int8), codes.scales.float()
        super().__init__(codes.shape, dtype, codes.title, self._values, self._scales)
        self.device = self._values.device
        self._block = codes.block
        self._has_nan = e4m3.has_nan(self._values)  # a damaged checkpoint: kept as it is

    def fill(self, tile: Tensor, start: int) -> None:
        rows, columns = self._block
        end = start + len(tile)
        values = self._values[start:end]
        if self._has_nan:
            tile.copy_(values.view(torch.float8_e4m3fn))
        else:
            e4m3.decode_into(values, tile)
        places = torch.arange(start, end, device=self.device) // rows
        scales = self._scales.index_select(0, places)
        if columns < self.shape[1]:
            scales = scales.repeat_interleave(columns, 1)[:, : self.shape[1]]
        tile.mul_(scales)


class TableWeights(TiledWeights):
    """Indices into a table of 16 values (NF4, FP4), two a byte; a byte is looked up as a pair."""

    def __init__(self, codes: TableCodes, dtype: torch.dtype) -> None:
        self._block_size = codes.block_size
        held = codes.codes
        if held.shape[1] % 2:
            held = torch.nn.functional.pad(held, (0, 1))
        self._packed = held[:, 0::2] << 4 | held[:, 1::2]
        self._scales = codes.scales.float().view(-1)
        super().__init__(codes.shape, dtype, codes.title, self._packed, self._scales)
        self.device = held.device
        self._pairs = _pairs(tuple(codes.table.tolist()), self.device)

    def fill(self, tile: Tensor, start: int) -> None:
        rows, width = tile.shape
        places = self._packed[start : start + rows].reshape(-1).int()
        if width % 2:
            pairs = self._pairs.index_select(0, places)
            tile.copy_(pairs.view(rows, -1)[:, :width])
        else:
            torch.index_select(self._pairs, 0, places, out=tile.view(-1, 2))
        size = self._block_size
        if width % size == 0:
            blocks = width // size
            scales = self._scales[start * blocks : (start + rows) * blocks]
            tile.view(-1, size).mul_(scales.unsqueeze(1))
        else:  # blocks run on from one row into the next
            places = torch.arange(start * width, (start + rows) * width, device=self.device) // size
            tile.mul_(self._scales.index_select(0, places).view_as(tile))


class GroupedWeights(TiledWeights):
    """Integers of 4 (two a byte) or 8 bits with scales and zero points per group of any size."""

    def __init__(self, codes: IntCodes, dtype: torch.dtype) -> None:
        assert codes.groups is None
        self._bits, self._group_size = codes.bits, codes.group_size
        held = codes.codes
        if codes.bits == 4:
            if held.shape[1] % 2:
                held = torch.nn.functional.pad(held, (0, 1))
            held = held[:, 0::2] | held[:, 1::2] << 4
        self._codes, self._scales, self._zeros = held.contiguous(), codes.scales, codes.zeros
        super().__init__(
            codes.shape, dtype, codes.title, self._codes, self._scales, self._zeros
        )
        self.device = held.device

    def fill(self, tile: Tensor, start: int) -> None:
        self._fill(tile, slice(start, start + len(tile)))

    def rows(self, outputs: Tensor) -> Tensor:
        """Rows [R, in] of outputs int64 [R], plain in `dtype`."""
        tile = torch.empty(len(outputs), self.shape[1], device=self.device)
        self._fill(tile, outputs)
        return tile.to(self.dtype)

    def _fill(self, tile: Tensor, outputs: slice | Tensor) -> None:
        codes = self._codes[outputs]
        if self._bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)[:, : self.shape[1]]
        tile.copy_(codes)
        if self._zeros is None:
            tile.sub_(2 ** (self._bits - 1))
        else:
            tile.sub_(self._by_column(self._zeros[outputs].float()))
        tile.mul_(self._by_column(self._scales[outputs].float()))

    def _by_column(self, values: Tensor) -> Tensor:
        if values.shape[1] == 1:
            return values
        return values.repeat_interleave(self._group_size, 1)[:, : self.shape[1]]


@cache
def _pairs(table: tuple[float, ...], device: torch.device) -> Tensor:
    """[256, 2]: the values of the high and of the low half of a byte."""
    with torch.inference_mode(False):
        values = torch.tensor(table, device=device)
        return torch.stack([values.repeat_interleave(16), values.repeat(16)], dim=-1)
