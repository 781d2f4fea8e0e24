"""Cuts tensors, and matrices of codes, into what a rank has of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.parallel.shape import Ranges
from engine.quantization.codes import Codes, FloatCodes, IntCodes, TableCodes


def cut_tensor(tensor: Tensor, dim: int, ranges: Ranges) -> Tensor:
    """The ranges of a dimension, one behind the other, in memory of their own."""
    parts = [tensor.narrow(dim, start, end - start) for start, end in ranges]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0].clone()


def cut_rows(
    parts: Iterable[Codes | Tensor], ranges: Ranges
) -> Iterator[Codes | Tensor]:
    """Of a matrix that comes in parts, row after row: the parts of the rows in `ranges`."""
    start = 0
    for part in parts:
        end = start + part.shape[0]
        for low, high in ranges:
            first, last = max(low, start), min(high, end)
            if first < last:
                yield narrowed(part, 0, first - start, last - start)
        start = end


def narrowed(matrix: Codes | Tensor, dim: int, start: int, end: int) -> Codes | Tensor:
    """Rows (dim 0) or columns (1) from `start` to `end`. Raises UnsupportedModelError where the
    scales of codes do not allow it."""
    if (start, end) == (0, matrix.shape[dim]):
        return matrix
    if isinstance(matrix, Tensor):
        return matrix.narrow(dim, start, end - start).clone()
    if isinstance(matrix, IntCodes):
        return _ints(matrix, dim, start, end)
    if isinstance(matrix, FloatCodes):
        return _floats(matrix, dim, start, end)
    return _table(matrix, dim, start, end)


def _ints(matrix: IntCodes, dim: int, start: int, end: int) -> IntCodes:
    codes = matrix.codes.narrow(dim, start, end - start).clone()
    if dim == 0:
        zeros = None if matrix.zeros is None else matrix.zeros[start:end].clone()
        return replace(matrix, codes=codes, scales=matrix.scales[start:end].clone(), zeros=zeros)
    if matrix.groups is not None:
        raise UnsupportedModelError(
            "The columns of its weights are grouped by activation order (desc_act), so that the "
            "groups of a rank's columns are of unlike sizes.",
            "Set tensor_parallel_size to 1, or choose a checkpoint without desc_act.",
        )
    size = _common(matrix.group_size, matrix.shape[1], start, end)
    places = torch.arange(start, end, size) // matrix.group_size
    zeros = None if matrix.zeros is None else matrix.zeros[:, places]
    return replace(
        matrix, codes=codes, scales=matrix.scales[:, places], zeros=zeros, group_size=size
    )


def _floats(matrix: FloatCodes, dim: int, start: int, end: int) -> FloatCodes:
    values = matrix.values.narrow(dim, start, end - start).clone()
    size = _common(matrix.block[dim], matrix.shape[dim], start, end)
    places = torch.arange(start, end, size) // matrix.block[dim]
    block = (size, matrix.block[1]) if dim == 0 else (matrix.block[0], size)
    return FloatCodes(values, matrix.scales.index_select(dim, places), block)


def _table(matrix: TableCodes, dim: int, start: int, end: int) -> TableCodes:
    count, width = matrix.shape
    if width % matrix.block_size:
        raise UnsupportedModelError(
            f"Scales of {matrix.block_size} weights run over the ends of rows of {width}.",
            "Set tensor_parallel_size to 1, or choose another checkpoint.",
        )
    codes = matrix.codes.narrow(dim, start, end - start).clone()
    scales = matrix.scales.view(count, -1)
    if dim == 0:
        return replace(matrix, codes=codes, scales=scales[start:end].flatten())
    size = _common(matrix.block_size, width, start, end)
    places = torch.arange(start, end, size) // matrix.block_size
    return replace(matrix, codes=codes, scales=scales[:, places].flatten(), block_size=size)


def _common(group: int, width: int, start: int, end: int) -> int:
    """The size of groups that begin and end where those of `group` do, and at both ends of a range:
    the group's own where it is cut nowhere."""
    if group >= width:  # one scale for all
        return end - start
    if end == width:  # the last group may be shorter
        return math.gcd(group, start) if start else group
    return math.gcd(group, start, end)
