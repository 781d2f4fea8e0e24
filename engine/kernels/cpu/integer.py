"""4- and 8-bit weights that integer.c multiplies with activations as integers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.kernels.cpu.library import APART, LANES, TYPES, Library, Packed
from engine.kernels.weights import Weights
from engine.numerics.codes import IntCodes
from engine.numerics.rounding import round_int8
from engine.numerics.scheme import grouped_title

_LARGEST_GROUP = {4: 4096, 8: 256}
"""Inputs whose products with activations of 16 bits an int32 can sum."""

_WIDEST = 65_536  # the same for 8 bits by 8
_AT_ONCE = 4096  # outputs that are packed or made plain at a time


class IntegerWeights(Weights):
    """Codes in panels of 16 outputs: uint8 [panels, steps, 16, 4], a step being 4 inputs of 8 bits
    or 8 of 4 (integer.c); scales and zero points [panels, groups, 16].

    Groups are multiplied with activations in 16 bits, which adds nothing to the error of bfloat16
    or float16. Symmetric int8 per output rounds activations to 8 bits per row, as
    the GPU kernels do.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        bits: int,
        group: int,
        packed: tuple[Tensor, Tensor, Tensor | None],
        dtype: torch.dtype,
        library: Library,
    ) -> None:
        """packed: codes, scales and zero points in panels. A group of all inputs is symmetric int8
        per output."""
        self.shape, self.dtype = shape, dtype
        self._library, self._bits, self._group = library, bits, group
        self._codes, self._scales, self._zeros = packed
        self._is_by_output = bits == 8 and group == shape[1] and self._zeros is None
        parts = 1 if self._is_by_output else 2
        self._arguments = Packed(
            *shape, group, bits, parts, TYPES[self._scales.dtype],
            self._codes.data_ptr(), self._scales.data_ptr(),
            None if self._zeros is None else self._zeros.data_ptr(),
        )  # fmt: skip
        self._arguments.prepare(shape[0], parts * (shape[1] + APART) + 8 * (shape[1] // group))

    @classmethod
    def of(cls, codes: IntCodes, dtype: torch.dtype, library: Library) -> IntegerWeights:
        assert fits(codes, dtype)
        count, width = codes.shape
        by_output = codes.is_int8_per_output
        packed = _empty(count, width, codes.bits)
        for start in range(0, count, _AT_ONCE):
            _pack_into(packed, start, codes.codes[start : start + _AT_ONCE], codes.bits)
        scales = in_panels(_readable(codes.scales, by_output))
        zeros = None if codes.zeros is None else in_panels(codes.zeros)
        group = width if by_output else codes.group_size
        return cls(codes.shape, codes.bits, group, (packed, scales, zeros), dtype, library)

    @classmethod
    def int8_rows(
        cls,
        shape: tuple[int, int],
        chunks: Iterable[Tensor],
        dtype: torch.dtype,
        library: Library,
    ) -> IntegerWeights:
        """Plain rows [n, in] rounded to int8 per output chunk by chunk; all chunks but the last
        are of a whole number of panels."""
        packed = _empty(*shape, 8)
        scales, start = torch.zeros(len(packed), 1, LANES), 0
        for plain in chunks:
            codes = round_int8(plain)
            _pack_into(packed, start, codes.codes, 8)
            found = in_panels(codes.scales.float())
            scales[start // LANES : start // LANES + len(found)] = found
            start += len(plain)
        assert start == shape[0]
        return cls(shape, 8, shape[1], (packed, scales, None), dtype, library)

    @property
    def title(self) -> str:
        return "int8" if self._is_by_output else grouped_title(self._bits, self._group)

    @property
    def nbytes(self) -> int:
        held = (self._codes, self._scales, self._zeros)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    @property
    def rounds_activations(self) -> bool:
        """Whether activations are rounded to 8 bits, which is not lossless."""
        return self._is_by_output

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        result = self._library.product(self._arguments, x)
        return result if bias is None else result.add_(bias)

    def dense(self) -> Tensor:
        result = torch.empty(self.shape, dtype=self.dtype)
        for start in range(0, self.shape[0], _AT_ONCE):
            part = torch.arange(start, min(start + _AT_ONCE, self.shape[0]))
            result[start : start + len(part)] = self.rows(part)
        return result

    def rows(self, outputs: Tensor) -> Tensor:
        """Rows [R, in] of outputs int64 [R], plain in `dtype`."""
        panel, lane = outputs // LANES, outputs % LANES
        found = self._codes[panel, :, lane]  # [R, steps, 4]
        if self._bits == 4:
            found = torch.stack([found & 15, found >> 4], dim=2)
        zeros = _middle(self._bits) if self._zeros is None else self._zeros[panel, :, lane]
        steps = found.reshape(len(outputs), -1, self._group).float()
        steps -= zeros.unsqueeze(2).float() if isinstance(zeros, Tensor) else zeros
        scales = self._scales[panel, :, lane].unsqueeze(2).float()
        return steps.mul_(scales).view(len(outputs), -1).to(self.dtype)


def fits(codes: IntCodes, dtype: torch.dtype) -> bool:
    """Whether integer.c multiplies `codes` as they are by activations in `dtype`.

    Not groups by float32, which have more bits than the 16 of its activations: see dequantized.c.
    """
    width = codes.shape[1]
    if codes.groups is not None or dtype not in TYPES:
        return False
    if codes.is_int8_per_output:
        return width % 4 == 0 and width <= _WIDEST
    size = codes.group_size
    is_known = size % 8 == 0 and size <= _LARGEST_GROUP.get(codes.bits, 0)
    return is_known and width % size == 0 and dtype is not torch.float32


def _empty(count: int, width: int, bits: int) -> Tensor:
    return torch.empty(-(-count // LANES), width * bits // 32, LANES, 4, dtype=torch.uint8)


def _pack_into(packed: Tensor, start: int, codes: Tensor, bits: int) -> None:
    """codes [n, in] as outputs start, ..., which are a whole number of panels before them."""
    step = 32 // bits
    part = filled(codes).view(-1, LANES, codes.shape[1] // step, step).transpose(1, 2)
    if bits == 4:
        part = part[..., :4] | part[..., 4:] << 4
    packed[start // LANES : start // LANES + len(part)] = part


def _readable(scales: Tensor, is_by_output: bool) -> Tensor:
    """In a number format that integer.c knows: 16 bits stay, but for the sake of int8's results
    being those of the GPU kernels."""
    if scales.dtype in (torch.bfloat16, torch.float16) and not is_by_output:
        return scales
    return scales.float()


def in_panels(values: Tensor) -> Tensor:
    """[N, G] as [panels, G, 16], rows of zeros below."""
    return filled(values).view(-1, LANES, values.shape[1]).transpose(1, 2).contiguous()


def filled(values: Tensor) -> Tensor:
    """With rows of zeros up to whole panels."""
    return torch.nn.functional.pad(values, (0, 0, 0, -len(values) % LANES))


def _middle(bits: int) -> int:
    return 1 << (bits - 1)
