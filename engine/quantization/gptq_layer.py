"""GPTQ on one layer: group after group, each on inputs that the groups before have spoiled."""

from __future__ import annotations

from collections.abc import Iterator

from engine.quantization.gptq import Order, gptq
from engine.quantization.groups import Group
from engine.quantization.statistics import Inputs
from engine.quantization.targets import Piece
from engine.quantization.watch import Product
from engine.quantization.work import LayerWork, Store

NO_TOKENS = "no token of the text reached it: rounded to the nearest"
NOT_INVERTIBLE = "its inputs gave no usable Hessian: rounded to the nearest"
HESSIAN_BYTES = 2**29
"""Most memory for Hessians at a time; one is kept in any case. Experts take turns."""


def gptq_layer(work: LayerWork, store: Store) -> None:
    for group in work.groups:
        pieces = work.group_pieces(group)
        for part in _parts(group, pieces, work):
            work.stage("Reading the text")
            wanted = {
                work.input_of(group, piece): Inputs(group.width, block=group.width)
                for piece in part
            }
            work.collect(wanted)
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
