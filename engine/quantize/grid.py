"""Integer grids for rounding a matrix, with scales as stored in a file.

asymmetric   the range of a group, widened to hold 0, in 2**bits - 1 steps
symmetric    twice the largest magnitude in 2**bits - 1 steps, with 0 at code 2**(bits - 1)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.numerics.codes import IntCodes, row_tiles
from engine.numerics.rounding import in_groups

_LEAST = {torch.float16: 6.0e-5, torch.bfloat16: 1e-12, torch.float32: 1e-12}


@dataclass(frozen=True, slots=True)
class Grid:
    bits: int
    group_size: int
    is_symmetric: bool
    scale_dtype: torch.dtype = torch.float16

    @property
    def top(self) -> int:
        return 2**self.bits - 1

    def parameters(self, lowest: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
        """(scales, zeros), float32 of the shape given, for values from lowest <= 0 to highest >= 0.
        A scale is a number of `scale_dtype`."""
        if self.is_symmetric:
            span = torch.maximum(-lowest, highest) * 2
        else:
            span = highest - lowest
        scales = (span / self.top).clamp_min(_LEAST[self.scale_dtype])
        scales = scales.to(self.scale_dtype).float()
        if self.is_symmetric:
            return scales, torch.full_like(scales, 2 ** (self.bits - 1))
        return scales, (-lowest / scales).round_().clamp_(0, self.top)

    def codes_of(self, values: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """The nearest codes, as float32; scales and zeros of a shape that broadcasts."""
        return (values / scales).round_().add_(zeros).clamp_(0, self.top)

    def ranges(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(lowest, highest) of each group, [N, G], widened to hold 0."""
        groups = in_groups(weight, self.group_size)
        return groups.amin(-1).clamp_max_(0), groups.amax(-1).clamp_min_(0)

    def round(self, weight: Tensor, ranges: tuple[Tensor, Tensor] | None = None) -> IntCodes:
        """The nearest codes of weight [N, K], float32; what is outside `ranges` is clipped."""
        scales, zeros = self.parameters(*(ranges or self.ranges(weight)))
        codes = torch.empty(weight.shape, dtype=torch.uint8)
        for part in row_tiles(weight):
            groups = in_groups(weight[part], self.group_size)
            found = self.codes_of(groups, scales[part].unsqueeze(-1), zeros[part].unsqueeze(-1))
            codes[part] = found.flatten(1)[:, : weight.shape[1]].to(torch.uint8)
        return self.pack(codes, scales, zeros)

    def pack(
        self, codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor | None = None
    ) -> IntCodes:
        return IntCodes(
            self.bits,
            codes.to(torch.uint8),
            scales.to(self.scale_dtype),
            None if self.is_symmetric else zeros.to(torch.uint8),
            self.group_size,
            groups,
        )

    def rounded(self, weight: Tensor) -> Tensor:
        """`round(weight).dequantize()`, without the codes in between."""
        scales, zeros = self.parameters(*self.ranges(weight))
        result = torch.empty_like(weight)
        for part in row_tiles(weight):
            s, z = scales[part].unsqueeze(-1), zeros[part].unsqueeze(-1)
            groups = in_groups(weight[part], self.group_size)
            found = self.codes_of(groups, s, z).sub_(z).mul_(s).flatten(1)
            result[part] = found[:, : weight.shape[1]]
        return result


STEPS = 20
TRIED = 10  # down to half of the range
_TILE = 2**22
# The product of queries and keys meets a softmax: less error in each is not less error there.
_QUERY_OR_KEY = re.compile(r"(^|_)(q|k|kv|qk|qkv)(_|$)|query|key|c_attn|Wqkv")


def may_clip(module: str) -> bool:
    """Whether a matrix of this name is clipped: all are but queries and keys."""
    return _QUERY_OR_KEY.search(module.rpartition(".")[2]) is None


def best_ranges(
    weight: Tensor, gram: Tensor, grid: Grid, check: Callable[[], None] = lambda: None
) -> tuple[tuple[Tensor, Tensor], float]:
    """((lowest, highest) [N, G] of each group, share of groups that were clipped).

    weight [N, K]; gram [G, group, group]: X^T X of each group's inputs.
    """
    lowest, highest = grid.ranges(weight)
    largest = torch.maximum(-lowest, highest)
    best = torch.full_like(largest, float("inf"))
    cut = torch.zeros_like(largest)
    rows = max(1, _TILE // weight.shape[1])
    for start in range(0, weight.shape[0], rows):
        part = slice(start, start + rows)
        groups = in_groups(weight[part], grid.group_size)
        for step in range(TRIED):
            check()
            limit = largest[part] * (1 - step / STEPS)
            error = _errors(groups, gram, grid, lowest[part], highest[part], limit)
            is_better = error < best[part] * (1 - 1e-6)
            best[part] = torch.where(is_better, error, best[part])
            cut[part] = torch.where(is_better, torch.full_like(error, step / STEPS), cut[part])
    limit = largest * (1 - cut)
    ranges = torch.maximum(lowest, -limit), torch.minimum(highest, limit)
    return ranges, float((cut > 0).float().mean())


def _errors(
    groups: Tensor, gram: Tensor, grid: Grid, lowest: Tensor, highest: Tensor, limit: Tensor
) -> Tensor:
    """[N, G] for groups [N, G, group] whose values are cut at +- limit [N, G]."""
    scales, zeros = grid.parameters(torch.maximum(lowest, -limit), torch.minimum(highest, limit))
    scales, zeros = scales.unsqueeze(-1), zeros.unsqueeze(-1)
    rounded = grid.codes_of(groups, scales, zeros).sub_(zeros).mul_(scales)
    difference = rounded.sub_(groups).transpose(0, 1)  # [G, N, group]
    return torch.bmm(difference, gram).mul_(difference).sum(-1).t()
