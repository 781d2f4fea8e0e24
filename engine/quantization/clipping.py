"""AWQ's second half: the range of each group, made narrower where that lessens its errors.

The error of a group is that of what it adds to the output, summed over the tokens:
|X d|^2 = d^T (X^T X) d for a change d of the weights. So of the inputs only X^T X is needed, and
every token counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from engine.quantization.grid import Grid
from engine.quantization.rounding import in_groups

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
