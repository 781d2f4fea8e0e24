"""GPTQ: the rounding error of a column is compensated in the columns after it.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
2023, algorithm 1. With H = X^T X of the inputs and U the upper Cholesky factor of its inverse, the
error of column i, divided by U[i, i], is subtracted from column j > i times U[i, j]. Columns are
processed in blocks: those inside a block at once, those behind it when the block is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.numerics.codes import IntCodes
from engine.quantize.grid import Grid
from engine.quantize.groups import Group, Product
from engine.quantize.statistics import Inputs, collect
from engine.quantize.targets import Piece
from engine.quantize.work import NO_TOKENS, LayerWork, Store

BLOCK = 128
_DAMPING_STEPS = 6


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which columns are rounded. by_importance: columns with large inputs first.
    static_groups: groups of adjacent columns, with scales fixed in advance; otherwise groups follow
    the rounding order."""

    by_importance: bool
    static_groups: bool


def gptq(
    weight: Tensor,
    hessian: Tensor,
    grid: Grid,
    order: Order,
    *,
    damping: float,
    check: Callable[[], None] = lambda: None,
) -> tuple[IntCodes, float] | None:
    """Codes of weight [N, K], float32, for inputs whose X^T X is `hessian` [K, K]; and the damping
    that was needed. None where no damping made the Hessian invertible.

    `check` is called between blocks, and may raise. Neither argument is changed.
    """
    columns = weight.shape[1]
    diagonal = hessian.diagonal()
    permutation = torch.arange(columns)
    if order.by_importance:
        permutation = torch.argsort(diagonal, descending=True, stable=True)
    factored = _factor(hessian, permutation, damping)
    if factored is None:
        return None
    upper, used = factored
    state = _Rounding(weight, grid, order, permutation)
    for start in range(0, columns, BLOCK):
        check()
        state.block(start, min(start + BLOCK, columns), upper)
    return state.codes(), used


class _Rounding:
    def __init__(self, weight: Tensor, grid: Grid, order: Order, permutation: Tensor) -> None:
        self._grid = grid
        self._order = order
        self._permutation = permutation
        self._rest = weight[:, permutation].clone()  # what is left to round, in the order of work
        self._codes = torch.empty(weight.shape, dtype=torch.uint8)
        groups = -(-weight.shape[1] // grid.group_size)
        if order.static_groups:
            self._scales, self._zeros = grid.parameters(*grid.ranges(weight))
            self._group_of = permutation // grid.group_size
        else:
            self._scales = torch.ones(weight.shape[0], groups)
            self._zeros = torch.zeros(weight.shape[0], groups)
            self._group_of = torch.arange(weight.shape[1]) // grid.group_size

    def block(self, start: int, end: int, upper: Tensor) -> None:
        part = self._rest[:, start:end].clone()
        errors = torch.empty_like(part)
        inner = upper[start:end, start:end]
        for i in range(end - start):
            column = start + i
            if not self._order.static_groups and column % self._grid.group_size == 0:
                self._open_group(column, part[:, i:], end)
            group = int(self._group_of[column])
            scale, zero = self._scales[:, group], self._zeros[:, group]
            codes = self._grid.codes_of(part[:, i], scale, zero)
            self._codes[:, column] = codes.to(torch.uint8)
            error = (part[:, i] - (codes - zero) * scale) / inner[i, i]
            part[:, i + 1 :].addr_(error, inner[i, i + 1 :], alpha=-1)
            errors[:, i] = error
        self._rest[:, end:].addmm_(errors, upper[start:end, end:], alpha=-1)

    def codes(self) -> IntCodes:
        unpermuted = torch.empty_like(self._codes)
        unpermuted[:, self._permutation] = self._codes
        groups = None
        if self._order.by_importance and not self._order.static_groups:
            groups = torch.empty(len(self._permutation), dtype=torch.int32)
            groups[self._permutation] = self._group_of.to(torch.int32)
        return self._grid.pack(unpermuted, self._scales, self._zeros, groups)

    def _open_group(self, column: int, ahead: Tensor, end: int) -> None:
        """Scales from the columns as they are now, with what was made good in them so far. Those
        behind this block still lack what the block will add: as in the paper."""
        stop = column + self._grid.group_size
        columns = ahead[:, : self._grid.group_size]
        if stop > end:
            columns = torch.cat([columns, self._rest[:, end:stop]], 1)
        lowest = columns.amin(1).clamp_max_(0)
        highest = columns.amax(1).clamp_min_(0)
        group = column // self._grid.group_size
        self._scales[:, group], self._zeros[:, group] = self._grid.parameters(lowest, highest)


def _factor(hessian: Tensor, permutation: Tensor, damping: float) -> tuple[Tensor, float] | None:
    """The upper Cholesky factor of the inverse of the permuted Hessian, and the damping with which
    there was one. At most two more matrices of the Hessian's size are in memory at a time, which
    for the widest products is most of what GPTQ takes."""
    diagonal = hessian.diagonal()[permutation]
    dead = diagonal <= 0  # a channel that was always 0: nothing is made good for or by it
    mean = float(diagonal[~dead].mean()) if bool((~dead).any()) else 1.0
    diagonal[dead] = mean
    if not _is_finite(hessian):
        return None
    for step in range(_DAMPING_STEPS):
        share = damping * 10**step
        damped = hessian[permutation.unsqueeze(1), permutation]
        damped.diagonal().copy_(diagonal + share * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        del damped
        if int(failed):
            continue
        inverse = torch.cholesky_inverse(lower)
        del lower
        upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
        del inverse
        if not int(failed) and _is_finite(upper):
            return upper, share
    return None


def _is_finite(matrix: Tensor) -> bool:
    """Row after row of tiles: the mask of a whole matrix is as large as a quarter of it."""
    return all(bool(torch.isfinite(part).all()) for part in matrix.split(BLOCK))


NOT_INVERTIBLE = "no usable Hessian: rounded to nearest"
HESSIAN_BYTES = 2**29
"""Most memory for Hessians at a time; one is kept in any case. Experts take turns."""


def gptq_layer(work: LayerWork, store: Store) -> None:
    for group in work.groups:
        pieces = work.group_pieces(group)
        for part in _parts(group, pieces, work):
            work.stage("Calibrating")
            wanted = {
                work.input_of(group, piece): Inputs(group.width, block=group.width)
                for piece in part
            }
            collect(work.layer, wanted, work.runs(), is_brief=True)
            work.stage("Rounding")
            for piece in part:
                _round(work, piece, wanted[work.input_of(group, piece)], store)


def _parts(group: Group, pieces: list[Piece], work: LayerWork) -> Iterator[list[Piece]]:
    """The pieces of a group, in parts whose Hessians fit in memory together."""
    most = max(1, HESSIAN_BYTES // (4 * group.width**2))
    by_input: dict[Product, list[Piece]] = {}
    for piece in pieces:
        by_input.setdefault(work.input_of(group, piece), []).append(piece)
    inputs = list(by_input.values())
    for start in range(0, len(inputs), most):
        yield [piece for found in inputs[start : start + most] for piece in found]


def _round(work: LayerWork, piece: Piece, inputs: Inputs, store: Store) -> None:
    weight = work.matrix(piece)
    recipe = work.recipe
    if not inputs.count:
        work.finish(piece, work.grid.round(weight), None, store, note=NO_TOKENS)
        return
    assert inputs.gram is not None
    order = Order(recipe.desc_act or recipe.static_groups, recipe.static_groups)
    found = gptq(weight, inputs.gram[0], work.grid, order, damping=recipe.damping, check=work.check)
    if found is None:
        work.finish(piece, work.grid.round(weight), inputs, store, note=NOT_INVERTIBLE)
        return
    codes, damping = found
    work.finish(piece, codes, inputs, store, damping=damping)
