"""Weights of 4 or 8 bits in groups, of float8 and of NF4, on a GPU: activations stay as they are.

By number of rows, for what limits a product changes with it:

    1                 reading the weight: each thread adds up what it read, no tensor cores
    up to FEW_ROWS    reading, still: the weight is made plain in registers, once for all rows
    up to TILE_ROWS   the same with a tile of all rows, on the tensor cores
    more              arithmetic: stripes of the weight are made plain, then torch multiplies

A row's result does not depend on how many rows are with it within the first two, nor within the
last where torch's product keeps to that; between them rounding differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.gpu import FEW_ROWS, few_rows_plan, one_row_plan, tile_plan, tile_rows
from engine.kernels.packed_codes import Packed, fits, pack
from engine.kernels.weights import Weights
from engine.numerics.codes import Codes, TableCodes
from engine.numerics.scheme import grouped_title

__all__ = ["PackedWeights", "fits"]

STRIPE_BYTES = 32 * 2**20
"""Of a stripe of plain weights: fills the GPU, and is little beside the weight's own memory."""


class PackedWeights(Weights):
    """Codes as the kernels of `engine.kernels.triton.packed` read them."""

    def __init__(self, codes: Codes, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype = codes.shape, dtype
        self.packed: Packed = pack(codes, device)
        self._block_size = codes.block_size if isinstance(codes, TableCodes) else 0
        self._tile_rows: int | None = None

    @property
    def title(self) -> str:
        held = self.packed
        if held.format == "table":
            return f"nf4, blocks of {self._block_size}"
        whole = held.group >= self.shape[1]
        if held.format == "fp8":
            return "fp8" if whole else f"fp8, groups of {held.group}"
        return held.format if whole else grouped_title(int(held.format[3:]), held.group)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        flat = x.reshape(-1, self.shape[1])
        if flat.stride(-1) != 1:
            flat = flat.contiguous()
        result = self.by_name(self.choose(len(flat)), flat, bias)
        return result.view(*x.shape[:-1], self.shape[0])

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
