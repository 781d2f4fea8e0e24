"""float8, NF4 and integer weights that dequantized.c dequantizes and multiplies in float32."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.cpu.integer import in_panels
from engine.kernels.cpu.library import LANES, TYPES, Library, Packed
from engine.kernels.weights import Weights
from engine.numerics import rounding as e4m3
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes

MANY_ROWS = 128
"""From here on weights are dequantized once for all rows, where the processor has tiles."""

_BLOCK = 512  # rows: dequantized.c
_E4M3, _TABLE, _INT, _ZEROS = 0, 1, 2, 4


class _Panels(NamedTuple):
    """Codes uint8 [panels, steps, 16], a step being one input (two for a table); scales [panels,
    groups, 16], or float32 [panels, groups] where a panel's outputs share them; zero points int8
    [panels, groups, 16]."""

    group: int
    codes: Tensor
    scales: Tensor
    table: Tensor | None = None
    zeros: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        return self.scales.dim() == 2

    @property
    def kind(self) -> int:
        """Integers of 8 bits are signed ones."""
        if self.table is not None:
            return _TABLE if self.zeros is None else _TABLE | _ZEROS
        if self.codes.dtype is torch.uint8:
            return _E4M3
        return _INT if self.zeros is None else _INT | _ZEROS


class DequantizedWeights(Weights):
    """Weights that are dequantized and multiplied in float32, which is lossless; for MANY_ROWS of
    bfloat16 in tiles, which with AMX and on AMD are of bfloat16 (tiled.c)."""

    def __init__(self, codes: Codes, dtype: torch.dtype, library: Library):
        assert fits(codes, dtype)
        self._library = library
        self._panels = held = _in_panels(codes)
        super().__init__(codes.shape, dtype, codes.title, held.codes, held.scales, held.zeros)
        self._arguments = Packed(
            *self.shape, held.group, kind=held.kind, shared=held.is_shared,
            scale_type=TYPES[held.scales.dtype],
        )  # fmt: skip
        for name in ("codes", "scales", "zeros", "table"):
            if (tensor := getattr(held, name)) is not None:
                setattr(self._arguments, name, tensor.data_ptr())
        row_bytes = 4 * (self.shape[1] + LANES)
        self._arguments.prepare(library.dequantized_product, row_bytes, _BLOCK)
        is_tiled = dtype is torch.bfloat16 and held.group % 2 == 0 and self.shape[1] % 32 == 0
        self._tiled_from = MANY_ROWS if is_tiled and library.has_tiles else sys.maxsize

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if len(x) < self._tiled_from:
            result = self._library.product(self._arguments, x)
        else:
            result = self.dequantizing(x)
        return result if bias is None else result.add_(bias)

    def dequantizing(self, x: Tensor) -> Tensor:
        """x [T, in] of bfloat16, in tiles."""
        return self._library.tiled_codes(self._arguments, x)

    def dense(self) -> Tensor:
        outputs, inputs = self.shape
        held = self._panels
        codes = self._by_output(held.codes)
        if held.table is not None:
            places = torch.stack([codes & 15, codes >> 4], dim=-1).view(outputs, inputs)
            plain = held.table[places.long()]
        elif held.kind == _E4M3:
            plain = codes.view(torch.float8_e4m3fn).float()
        else:
            plain = codes.float()
        scales = held.scales
        if held.is_shared:
            scales = scales.unsqueeze(-1).expand(-1, -1, LANES)
        grouped = plain.view(outputs, -1, held.group)
        if held.zeros is not None:
            grouped -= self._by_output(held.zeros).unsqueeze(2)
        grouped = grouped * self._by_output(scales).float().unsqueeze(2)
        return grouped.view(outputs, inputs).to(self.dtype)

    def _by_output(self, values: Tensor) -> Tensor:
        """[panels, n, 16] as [outputs, n]."""
        return values.transpose(1, 2).reshape(-1, values.shape[1])[: self.shape[0]]


def fits(codes: Codes, dtype: torch.dtype) -> bool:
    """Whether dequantized.c multiplies `codes` by activations in `dtype`. Not: rows that are no
    multiple of the group, groups that end within a byte, columns that are not in the order of their
    groups, and damaged float8 with NaN among its numbers."""
    outputs, inputs = codes.shape
    if dtype not in TYPES:
        return False
    if isinstance(codes, TableCodes):
        return codes.block_size % 2 == 0 and inputs % codes.block_size == 0
    if isinstance(codes, IntCodes):
        group = min(codes.group_size, inputs)
        is_known = codes.bits == 8 or (codes.bits == 4 and group % 2 == 0)
        return is_known and codes.groups is None and inputs % group == 0
    rows, columns = codes.block
    return (
        (rows == 1 or rows % LANES == 0 or rows >= outputs)
        and inputs % min(columns, inputs) == 0
        and not e4m3.has_nan(codes.values.view(torch.int8))
    )


def _in_panels(codes: Codes) -> _Panels:
    if isinstance(codes, TableCodes):
        scales = codes.scales.float().view(codes.shape[0], -1)
        table = codes.table.float().contiguous()
        return _Panels(codes.block_size, _pairs(codes.codes), in_panels(scales), table)
    if isinstance(codes, IntCodes):
        return _of_integers(codes)
    rows, columns = codes.block
    packed = in_panels(codes.values.view(torch.uint8))
    scales = _of_panels(codes) if rows > 1 else in_panels(codes.scales.float())
    return _Panels(min(columns, codes.shape[1]), packed, scales)


def _of_integers(codes: IntCodes) -> _Panels:
    """As distances from the middle, and so are their zero points."""
    middle, group = 1 << (codes.bits - 1), min(codes.group_size, codes.shape[1])
    scales = codes.scales if codes.scales.dtype in TYPES else codes.scales.float()
    zeros = None if codes.zeros is None else in_panels(_less_middle(codes.zeros, middle))
    if codes.bits == 4:
        table = torch.arange(-middle, middle, dtype=torch.float32)
        return _Panels(group, _pairs(codes.codes), in_panels(scales), table, zeros)
    packed = in_panels(_less_middle(codes.codes, middle))
    return _Panels(group, packed, in_panels(scales), zeros=zeros)


def _pairs(places: Tensor) -> Tensor:
    """Codes of 4 bits [N, K] in panels, two a byte."""
    return in_panels(places[:, 0::2] | places[:, 1::2] << 4)


def _less_middle(values: Tensor, middle: int) -> Tensor:
    """uint8 as int8."""
    return (values - middle).view(torch.int8)  # wraps round


def _of_panels(codes: FloatCodes) -> Tensor:
    """Scales [blocks of rows, groups] as [panels, groups]."""
    panels = -(-codes.shape[0] // LANES)
    return codes.scales.float().index_select(0, torch.arange(panels) * LANES // codes.block[0])
