"""4- and 8-bit weights that integer.c multiplies with activations as integers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.hardware.mapped import empty_weight
from engine.kernels.cpu.library import APART, LANES, TYPES, Library, Packed
from engine.kernels.weights import Weights
from engine.numerics.codes import IntCodes

_LARGEST_GROUP = {4: 4096, 8: 256}
"""Inputs whose products with activations of 16 bits an int32 can sum."""

_WIDEST = 65_536  # the same for 8 bits by 8
_CHUNK_BYTES = 786_432  # of codes that a thread holds, or four panels: integer_tiles.h
_AT_ONCE = 4096  # outputs that are packed or made plain at a time


class IntegerWeights(Weights):
    """Weights that integer.c multiplies as integers. Codes in panels of 16 outputs: uint8 [panels,
    steps, 16, 4], a step being 4 inputs of 8 bits or 8 of 4; scales and zero points [panels,
    groups, 16].

    Grouped weights use activations in 8-bit integers per group, or in 16-bit ones where one stands
    out of its group, which adds no error to that of bfloat16 or float16 (activations.h). Symmetric
    per-channel int8 quantizes activations to 8 bits per row, as the GPU kernels do.
    """

    def __init__(
        self, shape: tuple[int, int], chunks: Iterable[IntCodes], dtype: torch.dtype,
        library: Library,
    ) -> None:  # fmt: skip
        """chunks: of the matrix, one after the other, of whole panels but the last."""
        scales, zeros, start = [], [], 0
        for chunk in chunks:
            if not start:
                self._codes = _empty(*shape, chunk.bits)
            by_output = chunk.is_int8_per_output
            _pack_into(self._codes, start, chunk.codes, chunk.bits)
            scales.append(in_panels(_readable(chunk.scales, by_output)))
            if chunk.zeros is not None:
                zeros.append(in_panels(chunk.zeros))
            start += len(chunk.codes)
        assert start == shape[0]
        self._scales, self._zeros = torch.cat(scales), torch.cat(zeros) if zeros else None
        super().__init__(shape, dtype, chunk.title, self._codes, self._scales, self._zeros)
        group = shape[1] if by_output else chunk.group_size
        self._library, self._bits, self._group = library, chunk.bits, group
        parts = 1 if by_output else 2
        self._arguments = Packed(
            *shape, group, self._bits, parts, scale_type=TYPES[self._scales.dtype],
            codes=self._codes.data_ptr(), scales=self._scales.data_ptr(),
            zeros=None if self._zeros is None else self._zeros.data_ptr(),
        )  # fmt: skip
        row_bytes = parts * (shape[1] + APART) + 9 * (shape[1] // group)
        is_widened = chunk.bits == 4 and library.instructions.startswith("AVX-512")
        thread_bytes = max(_CHUNK_BYTES, 4 * LANES * shape[1]) if is_widened else 0
        self._arguments.prepare(library.integer_product, row_bytes, thread_bytes=thread_bytes)

    @classmethod
    def of(cls, codes: IntCodes, dtype: torch.dtype, library: Library) -> IntegerWeights:
        assert fits(codes, dtype)
        parts = (slice(at, at + _AT_ONCE) for at in range(0, codes.shape[0], _AT_ONCE))
        return cls(codes.shape, (codes.rows(part) for part in parts), dtype, library)

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
    return empty_weight((-(-count // LANES), width * bits // 32, LANES, 4), torch.uint8)


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
    panels = filled(values).view(-1, LANES, values.shape[1]).transpose(1, 2)
    return empty_weight(panels.shape, panels.dtype).copy_(panels)


def filled(values: Tensor) -> Tensor:
    """With rows of zeros up to whole panels."""
    return torch.nn.functional.pad(values, (0, 0, 0, -len(values) % LANES))


def _middle(bits: int) -> int:
    return 1 << (bits - 1)
