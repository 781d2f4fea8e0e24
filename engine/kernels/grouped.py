"""Codes of any kind in a compact form, made plain tile by tile while they are multiplied.

What has no kernel of its own is multiplied here: on a CPU fp8, NF4, 8 bits in groups or with zero
points; anywhere groups and blocks of an unusual size. Weights stay small in memory; each product
converts them.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

import torch
from torch import Tensor

from engine.kernels.tiles import few_rows, in_stripes, many_rows
from engine.kernels.weights import Weights
from engine.numerics import rounding as e4m3
from engine.numerics.codes import FloatCodes, IntCodes, TableCodes
from engine.numerics.scheme import grouped_title

_MANY = 48  # rows from which x @ W^T is faster than W @ x^T


class TiledWeights(Weights):
    """Weights that can write any of their rows into a buffer, in float32."""

    device: torch.device

    @abstractmethod
    def fill(self, tile: Tensor, start: int) -> None:
        """Rows start, start + 1, ... into tile float32 [rows, in]."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if x.device.type != "cpu":
            return in_stripes(x, self.fill, self.shape[0], bias)
        compute = few_rows if rows < _MANY else many_rows
        return compute(x, self.fill, self.shape[0], bias)

    def dense(self) -> Tensor:
        plain = torch.empty(self.shape, dtype=torch.float32, device=self.device)
        self.fill(plain, 0)
        return plain.to(self.dtype)


class Fp8Weights(TiledWeights):
    """float8_e4m3fn with a scale per output or per block of outputs and inputs."""

    def __init__(self, codes: FloatCodes, dtype: torch.dtype) -> None:
        self.shape, self.dtype = codes.shape, dtype
        self._values, self._scales = codes.values.view(torch.int8), codes.scales.float()
        self.device = self._values.device
        self._block = codes.block
        self._has_nan = e4m3.has_nan(self._values)  # a damaged checkpoint: kept as it is

    @property
    def title(self) -> str:
        rows, columns = self._block
        in_blocks = columns < self.shape[1]
        return f"fp8, blocks of {rows} x {columns}" if in_blocks else "fp8"

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._scales.nbytes

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
        self.shape, self.dtype = codes.shape, dtype
        self._block_size = codes.block_size
        held = codes.codes
        if held.shape[1] % 2:
            held = torch.nn.functional.pad(held, (0, 1))
        self._packed = held[:, 0::2] << 4 | held[:, 1::2]
        self._scales = codes.scales.float().view(-1)
        self.device = held.device
        self._pairs = _pairs(tuple(codes.table.tolist()), self.device)

    @property
    def title(self) -> str:
        return f"nf4, blocks of {self._block_size}"

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + self._scales.nbytes

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
        self.shape, self.dtype = codes.shape, dtype
        self.bits, self.group_size = codes.bits, codes.group_size
        held = codes.codes
        if codes.bits == 4:
            if held.shape[1] % 2:
                held = torch.nn.functional.pad(held, (0, 1))
            held = held[:, 0::2] | held[:, 1::2] << 4
        self._codes, self._scales, self._zeros = held.contiguous(), codes.scales, codes.zeros
        self.device = held.device

    @property
    def title(self) -> str:
        if self._scales.shape[1] == 1:
            return f"int{self.bits}"
        return grouped_title(self.bits, self.group_size)

    @property
    def nbytes(self) -> int:
        zeros = 0 if self._zeros is None else self._zeros.nbytes
        return self._codes.nbytes + self._scales.nbytes + zeros

    def fill(self, tile: Tensor, start: int) -> None:
        end, width = start + len(tile), self.shape[1]
        codes = self._codes[start:end]
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)[:, :width]
        tile.copy_(codes)
        scales = self._scales[start:end].float()
        if self._zeros is None:
            tile.sub_(2 ** (self.bits - 1))
        else:
            tile.sub_(self._by_column(self._zeros[start:end].float()))
        tile.mul_(self._by_column(scales))

    def _by_column(self, values: Tensor) -> Tensor:
        if values.shape[1] == 1:
            return values
        return values.repeat_interleave(self.group_size, 1)[:, : self.shape[1]]


@cache
def _pairs(table: tuple[float, ...], device: torch.device) -> Tensor:
    """[256, 2]: the values of the high and of the low half of a byte."""
    with torch.inference_mode(False):
        values = torch.tensor(table, device=device)
        return torch.stack([values.repeat_interleave(16), values.repeat(16)], dim=-1)
