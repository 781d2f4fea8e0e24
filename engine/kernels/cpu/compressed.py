"""bfloat16 weights in 12 bits, bit for bit (compressed.h): a quarter less to keep and to read."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from engine.hardware.mapped import empty_weight
from engine.kernels.cpu.library import Compressed, Library
from engine.kernels.cpu.workspace import workspace
from engine.kernels.weights import Weights

PANEL = 32
"""Outputs and inputs: both are multiples of it."""

MOST_OTHERS = 0.02
"""Of all numbers, whose exponents do not fit: so many take 0.16 bytes a weight of the 0.5 saved."""

_RUN_BYTES = 192  # compressed.h


class CompressedWeights(Weights):
    """A weight [out, in] of bfloat16 in 12 bits, multiplied by AMX (tiled.c).

    Each row's products are added up in one order, whatever their number. runs: uint8 [out / 32,
    in / 32, 8, 192]; others: int64, a number and its place each.
    """

    def __init__(self, weight: Tensor, library: Library, lowest: Tensor, left_out: Tensor) -> None:
        """lowest, left_out: what `choose_exponents` found."""
        panels = len(lowest)
        ends = (left_out + 1).cumsum(0)  # each panel's list has an end
        self._lowest, self._starts = lowest, ends - left_out - 1
        self._others = torch.empty(int(ends[-1]), dtype=torch.int64)
        self._runs = empty_weight((panels, weight.shape[1] // 4, _RUN_BYTES), torch.uint8)
        held = self._runs, self._lowest, self._starts, self._others
        super().__init__(weight.shape, weight.dtype, "bfloat16 in 12 bits", *held)
        self._library = library
        self._arguments = Compressed(*self.shape, *(one.data_ptr() for one in held))
        self._address = ctypes.addressof(self._arguments)
        library.compress(
            weight.data_ptr(), weight.stride(0), self._address, self._runs.data_ptr(),
            self._others.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    @classmethod
    def of(cls, weight: Tensor, library: Library) -> CompressedWeights | None:
        """`weight`, for which `fits` holds; None if it has too many different exponents."""
        assert fits(weight, library)
        lowest = torch.empty(len(weight) // PANEL, dtype=torch.uint8)
        left_out = torch.empty(len(lowest), dtype=torch.int64)
        library.choose_exponents(
            weight.data_ptr(), *weight.shape, weight.stride(0), lowest.data_ptr(),
            left_out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        if int(left_out.sum()) > MOST_OTHERS * weight.numel():
            return None
        return cls(weight, library, lowest, left_out)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._library.compressed(self._address, self.shape[0], x, bias)

    def rows(self, outputs: Tensor) -> Tensor:
        """Rows [R, in] of outputs int64 [R]."""
        outputs = outputs.long().contiguous()
        found = torch.empty(len(outputs), self.shape[1], dtype=self.dtype)
        self._library.compressed_rows(
            self._address, outputs.data_ptr(), found.data_ptr(), len(outputs), workspace(0).threads
        )
        return found

    def dense(self) -> Tensor:
        found = torch.empty(self.shape, dtype=self.dtype)
        self._library.decompress(self._address, found.data_ptr(), torch.get_num_threads())
        return found


def fits(weight: Tensor, library: Library) -> bool:
    """Whether compressed.h has a form for `weight`, and AMX to multiply it."""
    return (
        library.has_amx
        and weight.dtype is torch.bfloat16
        and weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.stride(1) == 1
        and weight.numel() > 0
        and not any(size % PANEL for size in weight.shape)
    )
