"""Codes that stand for numbers, float8 and places in a table, as decoded.c reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import e4m3
from engine.kernels.native.library import LANES, TYPES, Coded, Library
from engine.kernels.native.weights import in_panels
from engine.kernels.weights import Weights
from engine.quantization.codes import FloatCodes, TableCodes

_BLOCK = 512  # rows: decoded.c
_E4M3, _TABLE = 0, 1


class DecodedWeights(Weights):
    """uint8 [panels, steps, 16], a step being an input, or two of a table; scales float32 [panels,
    groups, 16], or [panels, groups] where the outputs of a panel share them."""

    def __init__(self, codes: FloatCodes | TableCodes, dtype: torch.dtype, library: Library):
        assert fits(codes, dtype)
        self.shape, self.dtype = codes.shape, dtype
        self._library = library
        self._table: Tensor | None = None
        if isinstance(codes, TableCodes):
            self._table = codes.table.float().contiguous()
            self._title = f"nf4, blocks of {codes.block_size}"
            self._group, shared = codes.block_size, False
            places = codes.codes.view(self.shape[0], -1, 2)
            packed = places[..., 0] | places[..., 1] << 4
            self._scales = in_panels(codes.scales.float().view(len(places), -1))
        else:
            rows, columns = codes.block
            in_blocks = columns < self.shape[1]
            self._title = f"fp8, blocks of {rows} x {columns}" if in_blocks else "fp8"
            self._group, shared = min(columns, self.shape[1]), rows > 1
            packed = codes.values.view(torch.uint8)
            self._scales = _of_panels(codes) if shared else in_panels(codes.scales.float())
        self._codes = in_panels(packed)
        self._told = Coded(
            *self.shape, self._group, _E4M3 if self._table is None else _TABLE, shared,
            self._codes.data_ptr(), self._scales.data_ptr(),
            None if self._table is None else self._table.data_ptr(),
        )  # fmt: skip
        self._told.settle(self.shape[0], 4 * (self.shape[1] + LANES), _BLOCK)

    @property
    def title(self) -> str:
        return self._title

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        outputs, inputs = self.shape
        result = self._library.decoded(self._told, x.reshape(-1, inputs).contiguous())
        if bias is not None:
            result += bias
        return result.view(*x.shape[:-1], outputs)

    def dense(self) -> Tensor:
        outputs, inputs = self.shape
        codes = self._codes.transpose(1, 2).reshape(-1, self._codes.shape[1])[:outputs]
        if self._table is None:
            plain = codes.view(torch.float8_e4m3fn).float()
        else:
            places = torch.stack([codes & 15, codes >> 4], dim=-1).view(outputs, inputs)
            plain = self._table[places.long()]
        scales = self._scales
        if self._told.shared:
            scales = scales.unsqueeze(-1).expand(-1, -1, LANES)
        by_output = scales.transpose(1, 2).reshape(-1, scales.shape[1])[:outputs]
        grouped = plain.view(outputs, -1, self._group)
        return (grouped * by_output.unsqueeze(2)).view(outputs, inputs).to(self.dtype)


def fits(codes: FloatCodes | TableCodes, dtype: torch.dtype) -> bool:
    """Whether decoded.c multiplies `codes` by activations in `dtype`. Damaged float8, where NaN
    stands for a number, is left to torch, which keeps it as it is."""
    outputs, inputs = codes.shape
    if dtype not in TYPES:
        return False
    if isinstance(codes, TableCodes):
        return codes.block_size % 2 == 0 and inputs % codes.block_size == 0
    rows, columns = codes.block
    return (
        (rows == 1 or rows % LANES == 0 or rows >= outputs)
        and inputs % min(columns, inputs) == 0
        and not e4m3.has_nan(codes.values.view(torch.int8))
    )


def _of_panels(codes: FloatCodes) -> Tensor:
    """Scales [blocks of rows, groups] as [panels, groups]."""
    panels = -(-codes.shape[0] // LANES)
    return codes.scales.float().index_select(0, torch.arange(panels) * LANES // codes.block[0])
