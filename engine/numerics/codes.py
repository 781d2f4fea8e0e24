"""A quantized matrix as numbers, before it is packed for a kernel or for a file.

    n: output (row), k: input (column), g: the group of column k

    IntCodes    w[n, k] = (codes[n, k] - zeros[n, g]) * scales[n, g]
    FloatCodes  w[n, k] = float8(values[n, k]) * scales[n // rows, k // columns]
    TableCodes  w[n, k] = table[codes[n, k]] * scales[(n * K + k) // block]

Codes are unpacked, a byte each: they exist for one matrix at a time, while it is read or made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NF4_TABLE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 values of NF4 (Dettmers et al., "QLoRA", 2023, appendix E)."""


def grouped_title(bits: int, group_size: int) -> str:
    return f"int{bits}, groups of {group_size}"


_TILE = 2**18  # elements that are rounded, or made plain, at a time: they stay in a core's cache


def row_tiles(weight: Tensor) -> Iterator[slice]:
    """Rows of weight [N, K] a few at a time."""
    step = max(1, _TILE // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], step):
        yield slice(start, start + step)


@dataclass(frozen=True)
class IntCodes:
    """Integers with a scale, and a zero point, per output and group of inputs.

    codes uint8 [N, K], below 2**bits; scales [N, G], any float; zeros uint8 [N, G], or None:
    2**(bits - 1) everywhere. Column k belongs to group k // group_size (the last may be shorter),
    or to groups[k] where `groups`, int32 [K], is given (GPTQ's desc_act).
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    group_size: int
    groups: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def title(self) -> str:
        """Number format for people."""
        grouped = grouped_title(self.bits, self.group_size)
        return f"int{self.bits}" if self.scales.shape[1] == 1 else grouped

    @property
    def is_symmetric(self) -> bool:
        return self.zeros is None

    @property
    def is_int8_per_output(self) -> bool:
        """Symmetric int8 with one scale per output."""
        return self.bits == 8 and self.is_symmetric and self.scales.shape[1] == 1

    def rows(self, which: slice | Tensor) -> IntCodes:
        zeros = None if self.zeros is None else self.zeros[which]
        return replace(self, codes=self.codes[which], scales=self.scales[which], zeros=zeros)

    def group_of_columns(self) -> Tensor:
        """int64 [K]: the group of each column."""
        if self.groups is not None:
            return self.groups.long()
        return torch.arange(self.shape[1], device=self.codes.device) // self.group_size

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K]. In float32 the product is exact for 16-bit scales; then rounded to `dtype`."""
        columns, device = self.group_of_columns(), self.codes.device
        result = torch.empty(self.shape, dtype=dtype, device=device)
        for part in row_tiles(self.codes):
            zero: Tensor | int = 2 ** (self.bits - 1)
            if self.zeros is not None:
                zero = self.zeros[part].to(torch.int16).index_select(1, columns)
            steps = (self.codes[part].to(torch.int16) - zero).to(torch.float32)
            result[part] = steps.mul_(self.scales[part].float().index_select(1, columns))
        return result

    def grouped(self) -> tuple[IntCodes, Tensor | None]:
        """The same matrix with its columns in the order of their groups, and that order (column j
        is column order[j] of this one); None where they are in order already."""
        if self.groups is None:
            return self, None
        order = torch.argsort(self.groups, stable=True)
        sizes = torch.bincount(self.groups.long(), minlength=self.scales.shape[1])
        if bool((sizes[:-1] != self.group_size).any()) or int(sizes[-1]) > self.group_size:
            raise ValueError(f"groups of {sorted(set(sizes.tolist()))} columns")
        ordered = replace(self, codes=self.codes.index_select(1, order), groups=None)
        in_order = bool((order == torch.arange(len(order), device=order.device)).all())
        return ordered, None if in_order else order


@dataclass(frozen=True)
class FloatCodes:
    """float8_e4m3fn values [N, K] with a scale per block of rows and columns.

    scales float32 [ceil(N / rows), ceil(K / columns)]: [1, 1] per tensor, [N, 1] per output, or
    blocks of 128 x 128.
    """

    values: Tensor
    scales: Tensor
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def title(self) -> str:
        rows, columns = self.block
        return f"fp8, blocks of {rows} x {columns}" if columns < self.shape[1] else "fp8"

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        rows, columns = self.block
        count, width = self.shape
        scales = self.scales.float()
        if rows < count:
            scales = scales.repeat_interleave(rows, 0)[:count]
        if columns < width:
            scales = scales.repeat_interleave(columns, 1)[:, :width]
        return (self.values.float() * scales).to(dtype)


@dataclass(frozen=True)
class TableCodes:
    """Indices into a table of 16 values, with a scale per block along the flattened matrix.

    codes uint8 [N, K] below 16; scales float32 [ceil(N * K / block_size)]; table float32 [16].
    """

    codes: Tensor
    scales: Tensor
    block_size: int
    table: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def title(self) -> str:
        return f"nf4, blocks of {self.block_size}"

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        flat = self.table.float()[self.codes.reshape(-1).long()]
        scales = self.scales.float().repeat_interleave(self.block_size)[: flat.numel()]
        return flat.mul_(scales).view(self.shape).to(dtype)


Codes = IntCodes | FloatCodes | TableCodes


def moved(codes: Codes, device: torch.device) -> Codes:
    """The same matrix on `device`."""
    tensors = {n: t.to(device) for n, t in vars(codes).items() if isinstance(t, Tensor)}
    return replace(codes, **tensors)  # type: ignore[arg-type]


def stack(parts: Sequence[Codes]) -> Codes | None:
    """Matrices with the same inputs as one, row after row; None where they are too unlike."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(isinstance(p, IntCodes) for p in parts) and isinstance(first, IntCodes):
        return _stack_ints([p for p in parts if isinstance(p, IntCodes)])
    floats = [p for p in parts if isinstance(p, FloatCodes)]
    if len(floats) == len(parts):
        return _stack_floats(floats)
    tables = [p for p in parts if isinstance(p, TableCodes)]
    if len(tables) == len(parts) and all(_follows(t, tables[0]) for t in tables):
        return replace(
            tables[0],
            codes=torch.cat([t.codes for t in tables]),
            scales=torch.cat([t.scales for t in tables]),
        )
    return None


def in_turns(parts: Sequence[Codes | Tensor]) -> Codes | Tensor:
    """Matrices of one shape as one: the first row of each, the second of each, and so on."""
    count = parts[0].shape[0]
    order = torch.arange(len(parts) * count).view(len(parts), count).t().flatten()
    codes = [part for part in parts if not isinstance(part, Tensor)]
    joined = stack(codes) if len(codes) == len(parts) else None
    found = None if joined is None else _rows(joined, order)
    if found is not None:
        return found
    plain = [part if isinstance(part, Tensor) else part.dequantize() for part in parts]
    return torch.cat(plain)[order]


def _rows(codes: Codes, rows: Tensor) -> Codes | None:
    """The matrix of `rows`, int64, of `codes`; None where scales belong to several of them."""
    if isinstance(codes, IntCodes):
        return codes.rows(rows)
    if isinstance(codes, FloatCodes) and codes.block[0] == 1:
        return replace(codes, values=codes.values[rows], scales=codes.scales[rows])
    if isinstance(codes, TableCodes) and codes.shape[1] % codes.block_size == 0:
        scales = codes.scales.view(len(codes.codes), -1)[rows].flatten()
        return replace(codes, codes=codes.codes[rows], scales=scales)
    return None


def _stack_ints(parts: list[IntCodes]) -> IntCodes | None:
    first = parts[0]
    for part in parts[1:]:
        if (part.bits, part.group_size, part.is_symmetric, part.scales.dtype) != (
            first.bits, first.group_size, first.is_symmetric, first.scales.dtype,
        ):  # fmt: skip
            return None
        if (part.groups is None) != (first.groups is None):
            return None
        if part.groups is not None and not torch.equal(part.groups, first.groups):  # type: ignore[arg-type]
            return None
    zeros = [p.zeros for p in parts if p.zeros is not None]
    return replace(
        first,
        codes=torch.cat([p.codes for p in parts]),
        scales=torch.cat([p.scales for p in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def _stack_floats(parts: list[FloatCodes]) -> FloatCodes | None:
    """Scales per tensor become scales per output, which say the same."""
    widths = {p.block[1] for p in parts}
    rows = {p.block[0] for p in parts}
    if len(widths) != 1:
        return None
    if all(p.block[0] >= p.shape[0] or p.block[0] == 1 for p in parts):
        scales = [p.scales.expand(p.shape[0], -1) for p in parts]
        block = (1, parts[0].block[1])
    elif len(rows) == 1 and not any(p.shape[0] % p.block[0] for p in parts[:-1]):
        scales, block = [p.scales for p in parts], parts[0].block
    else:
        return None
    return FloatCodes(torch.cat([p.values for p in parts]), torch.cat(scales), block)


def _follows(part: TableCodes, first: TableCodes) -> bool:
    return (
        part.block_size == first.block_size
        and not part.codes.numel() % part.block_size
        and torch.equal(part.table, first.table)
    )
