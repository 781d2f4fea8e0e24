"""Codes of 4 or 8 bits in the order in which the GPU kernels read them.

    words int32 [blocks * 32, stride]     word [32 b + j, n], field i (of 8 with 4 bits, or 4)
                                          = code of output n, input 32 F b + 32 i + j
    scales [groups, stride]               of input k: k // group
    zeros uint8 [groups, stride]          or none
    table float32 [16]                    for "table" (NF4): the numbers that the codes index

Outputs are adjacent (`stride` of them, the last ones padding), so that a warp reads whole lines; 32
consecutive inputs are in one group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.numerics.codes import Codes, FloatCodes, TableCodes

WORDS = 32  # of a block, and inputs of a field
_ALIGNED = 16  # outputs: rows of words start where wide loads may
_AT_ONCE = 2**26  # codes that are moved and packed at a time


class Plan(NamedTuple):
    """A kernel's launch plan: outputs per program, programs along the inputs, and compile options.
    """

    block_n: int
    splits: int
    warps: int
    stages: int


class Packed(NamedTuple):
    """A packed weight [out, in] = `shape`; for experts [experts, out, in] with the `words`,
    `scales` and `zeros` of all experts stacked. `format`: "int4", "int8", "fp8" or "table"."""

    format: str
    shape: tuple[int, int]
    group: int
    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    table: Tensor | None = None

    @property
    def bits(self) -> int:
        return 4 if self.format in ("int4", "table") else 8

    @property
    def has_zeros(self) -> bool:
        return self.zeros is not None

    @property
    def numbers(self) -> tuple[float, ...]:
        """The table; empty where there is none."""
        return () if self.table is None else tuple(self.table.tolist())

    @property
    def stride(self) -> int:
        return self.words.shape[-1]

    @property
    def num_blocks(self) -> int:
        return self.words.shape[-2] // WORDS

    def is_even(self, splits: int) -> bool:
        """Whether `splits` programs along the inputs, and their blocks, are all full."""
        width = WORDS * (32 // self.bits)
        return self.shape[1] % width == 0 and self.num_blocks % splits == 0

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """A kernel's arguments. Without zeros the third is the table, or the scales."""
        for third in (self.zeros, self.table):
            if third is not None:
                return self.words, self.scales, third
        return self.words, self.scales, self.scales


def fits(codes: Codes) -> bool:
    """Whether the packed form holds `codes` as they are."""
    if isinstance(codes, FloatCodes):
        return _is_run(codes.block[1], codes.shape[1])
    if isinstance(codes, TableCodes):
        return _is_run(_run_of(codes), codes.shape[1])
    return (
        codes.bits in (4, 8) and codes.groups is None and _is_run(codes.group_size, codes.shape[1])
    )


def _is_run(group: int, width: int) -> bool:
    return group % WORDS == 0 or group >= width


def _run_of(codes: TableCodes) -> int:
    """Inputs of one scale: blocks run on from one row into the next, and each row is cut where
    blocks begin in any of them."""
    return math.gcd(codes.block_size, codes.shape[1])


def pack(codes: Codes, device: torch.device) -> Packed:
    """Move to `device` and pack there, some outputs at a time, to limit peak memory."""
    count, width = codes.shape
    if isinstance(codes, FloatCodes):
        name, bits, group = "fp8", 8, codes.block[1]
        values, zeros = codes.values.view(torch.uint8), None
        rows = torch.arange(count, device=codes.scales.device) // codes.block[0]
        scales = codes.scales.float().index_select(0, rows)
    elif isinstance(codes, TableCodes):
        name, bits, group = "table", 4, _run_of(codes)
        values, zeros = codes.codes, None
        starts = torch.arange(0, count * width, group, device=codes.scales.device)
        scales = codes.scales.float().view(-1)[starts // codes.block_size].view(count, -1)
    else:
        name, bits, group = f"int{codes.bits}", codes.bits, codes.group_size
        values, zeros = codes.codes, codes.zeros
        scales = codes.scales if codes.scales.dtype.itemsize == 2 else codes.scales.float()
    fields = 32 // bits
    block = WORDS * fields
    blocks = -(-width // block)
    stride = -(-count // _ALIGNED) * _ALIGNED
    words = torch.zeros(blocks * WORDS, stride, dtype=torch.int32, device=device)
    at_once = max(1, _AT_ONCE // (blocks * block))
    for start in range(0, count, at_once):
        part = values[start : start + at_once].to(device)
        words[:, start : start + len(part)] = _words(part, blocks, bits)
    if group >= width:
        group = blocks * block
    groups = -(-blocks * block // group)
    return Packed(
        name, (count, width), group, words,
        _by_group(scales, groups, stride, device),
        None if zeros is None else _by_group(zeros, groups, stride, device),
        codes.table.float().to(device) if isinstance(codes, TableCodes) else None,
    )  # fmt: skip


def _words(codes: Tensor, blocks: int, bits: int) -> Tensor:
    """uint8 [n, K] as int32 [blocks * 32, n]."""
    fields = 32 // bits
    wide = torch.nn.functional.pad(codes, (0, blocks * WORDS * fields - codes.shape[1]))
    by_field = wide.view(len(codes), blocks, fields, WORDS)
    words = by_field[:, :, 0].to(torch.int32)
    for field in range(1, fields):
        words |= by_field[:, :, field].to(torch.int32) << (bits * field)
    return words.view(len(codes), -1).t()


def _by_group(values: Tensor, groups: int, stride: int, device: torch.device) -> Tensor:
    """[N, G] as [groups, stride], padded with zeros, which do not count."""
    result = torch.zeros(groups, stride, dtype=values.dtype, device=device)
    result[: values.shape[1], : len(values)] = values.to(device).t()
    return result
