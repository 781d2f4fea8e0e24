"""Shards of tensors and of quantized matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.formats.safetensors_file import TensorInfo
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes
from engine.parallel.shape import Cut, Ranges, Shape


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
            "The checkpoint uses desc_act (act-order): column shards would split its quantization "
            "groups unevenly.",
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
            f"Row length {width} is not a multiple of quantization block size {matrix.block_size}.",
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


Index = tuple[int | slice, ...]


class Piece(NamedTuple):
    """The shard of a tensor on disk: `start` to `end` of its dimension `dim`, and its place in the
    rank's weight."""

    dim: int
    start: int
    end: int
    place: Index


class Share:
    """The shard of rank `rank` of a model that is sharded as in `shape`."""

    def __init__(self, shape: Shape, rank: int) -> None:
        self.shape, self.rank = shape, rank

    @property
    def config(self) -> Any:
        """Of the rank's own model."""
        return self.shape.config

    def is_cut(self, name: str) -> bool:
        return name in self.shape.cuts

    def has(self, name: str) -> bool:
        """Whether the rank adds this weight: of a bias, one of them does."""
        return self.rank == 0 or name not in self.shape.once

    def is_padded(self, name: str) -> bool:
        """Whether the rank has fewer of a weight than others, and zeros behind them."""
        cut = self.shape.cuts[name]
        return sum(end - start for start, end in self._ranges(cut)) < cut.part

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """The rank's part of a whole weight, as the model's class has it; with zeros behind it,
        where it is shorter than that of others."""
        cut = self.shape.cuts.get(name)
        if cut is None:
            return tensor if self.has(name) else torch.zeros_like(tensor)
        found = cut_tensor(tensor, cut.dim, self._ranges(cut))
        missing = cut.part - found.shape[cut.dim]
        if missing:
            padding = list(found.shape)
            padding[cut.dim] = missing
            found = torch.cat((found, found.new_zeros(padding)), cut.dim)
        return found

    def pieces(
        self, name: str, part: Index, shape: tuple[int, ...], is_turned: bool = False
    ) -> list[Piece]:
        """What to take of a tensor on disk of `shape`, which is `part` of the whole weight `name`
        (all of it, where part is empty). is_turned: the class keeps [in, out], and the tensor and
        the part, as the places that are returned, are of [out, in]."""
        cut = self.shape.cuts[name]
        numbers = sum(isinstance(one, int) for one in part)  # experts, of which each rank has all
        dim = cut.dim
        if is_turned:
            last = len(shape) + numbers - 1
            dim = {last: last - 1, last - 1: last}[dim]
        covered = part[dim] if dim < len(part) else slice(0, cut.whole)
        if not isinstance(covered, slice) or (covered.step or 1) != 1:
            raise UnsupportedModelError(
                f"{name} is stored with interleaved rows, which cannot be sharded.",
                "Set tensor_parallel_size to 1, or choose another checkpoint.",
            )
        start = covered.start or 0
        end = start + shape[dim - numbers]
        found, behind = [], 0
        for low, high in self._ranges(cut):
            first, stop = max(low, start), min(high, end)
            if first < stop:
                at = slice(behind + first - low, behind + stop - low)
                before = (*part[:dim], *[slice(None)] * (dim - len(part)))
                place = (*before, at, *part[dim + 1 :])
                found.append(Piece(dim - numbers, first - start, stop - start, place))
            behind += high - low
        return found

    def matrix(
        self, name: str, is_expert: bool, is_turned: bool, parts: Iterable[Codes | Tensor]
    ) -> Iterator[Codes | Tensor]:
        """The rank's part of a matrix [out, in] (of one expert, whose weight has the matrices of
        all) that comes row after row."""
        cut = self.shape.cuts.get(name)
        if cut is None:
            yield from parts
            return
        axis = cut.dim - is_expert
        axis = 1 - axis if is_turned else axis
        ranges = self._ranges(cut)
        if axis == 0:
            yield from cut_rows(parts, ranges)
            return
        ((start, end),) = ranges
        for part in parts:
            yield narrowed(part, 1, start, end)

    def rows(
        self, name: str, info: TensorInfo, at_once: int
    ) -> Iterator[tuple[TensorInfo | None, int]]:
        """The rows of embeddings or head that the rank has, `at_once` at a time: where they lie on
        disk (None: nowhere), and how many rows of zeros stand behind them."""
        cut = self.shape.cuts.get(name)
        count = info.shape[0] if cut is None else cut.part
        ((start, end),) = ((0, count),) if cut is None else self._ranges(cut)
        for low in range(0, count, at_once):
            height = min(at_once, count - low)
            first, last = min(start + low, end), min(start + low + height, end)
            found = info.rows(first, last) if first < last else None
            yield found, height - (last - first)

    def _ranges(self, cut: Cut) -> tuple[tuple[int, int], ...]:
        return cut.ranges(self.rank, self.shape.size)
