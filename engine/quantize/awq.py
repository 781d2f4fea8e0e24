"""AWQ: scales up channels with large inputs before rounding.

Lin et al., "AWQ: Activation-aware Weight Quantization", 2023. For the inputs' mean magnitude x and
the weights' w (each relative to the largest of its group), per channel:

    s = x^r / w^(1 - r),  s /= sqrt(max(s) * min(s)),      r = 0, 1/20, ... 19/20

The best r is the one whose rounded weights change the output least: of the attention or MLP that
contains the matrices, or of a single matrix itself. No scaling is a candidate too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.numerics.codes import row_tiles
from engine.numerics.rounding import in_groups
from engine.quantize.folding import Fold, find_fold
from engine.quantize.grid import Grid, best_ranges, may_clip
from engine.quantize.groups import Group, Product
from engine.quantize.statistics import Inputs, collect
from engine.quantize.targets import Piece
from engine.quantize.work import NO_TOKENS, STORED, LayerWork, Store

RATIOS = 20


class Scales(NamedTuple):
    """The scales [K] and their ratio r; None: no scaling was best."""

    values: Tensor
    ratio: float | None


class _Call(NamedTuple):
    """A block's inputs and output for one sequence."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


def awq_layer(work: LayerWork, store: Store) -> None:
    """Scale, clip and round the matrices of one layer."""
    work.stage("Finding layers to scale")
    folds = {
        group: find_fold(work.layer, group, work.groups, lambda: work.run(0), work.frozen)
        for group in work.groups
        if work.group_pieces(group)
    }
    work.stage("Calibrating")
    inputs, calls = _observe(work, folds)
    work.stage("Searching for scales")
    chosen = {
        group: _search_group(work, group, fold, inputs, calls)
        for group, fold in folds.items()
        if fold is not None
    }
    calls.clear()
    for group, scales in chosen.items():
        fold = folds[group]
        assert fold is not None
        chosen[group] = _apply(work, group, fold, scales, inputs)
    work.stage("Rounding")
    for group in folds:
        for piece in work.group_pieces(group):
            work.check()
            _round(work, group, piece, chosen.get(group), inputs, store)


def _observe(
    work: LayerWork, folds: dict[Group, Fold | None]
) -> tuple[dict[Product, Inputs], dict[str, list[_Call]]]:
    """Statistics of all inputs, and the calls of the blocks whose output is compared."""
    inputs: dict[Product, Inputs] = {}
    calls: dict[str, list[_Call]] = {}
    search_rows = sum(work.decoder.states[s].shape[1] for s in work.search_sequences)
    for group, fold in folds.items():
        is_alone = fold is not None and group.block is None
        rows = {"rows": search_rows} if is_alone else {}
        inputs |= work.inputs(group, block=work.grid.group_size, **rows)
        if fold is not None and group.block is not None:
            calls[group.block] = []
    rest = [s for s in range(work.num_sequences) if s not in work.search_sequences]
    with _recorded(work.layer, calls):
        collect(work.layer, inputs, work.runs(work.search_sequences))
    collect(work.layer, inputs, work.runs(rest), is_brief=True)
    return inputs, calls


def _search_group(
    work: LayerWork,
    group: Group,
    fold: Fold,
    inputs: dict[Product, Inputs],
    calls: dict[str, list[_Call]],
) -> list[Scales]:
    """The best scales of a group; of each expert where each has its own input."""
    pieces = work.group_pieces(group)
    dtype = STORED[pieces[0].info.dtype]
    if not group.is_per_expert:
        matrices = [work.matrix(piece) for piece in pieces]
        if group.block is None:
            loss = _product_loss(inputs[work.input_of(group, pieces[0])], matrices[0])
        else:
            loss = _block_loss(work, work.layer.get_submodule(group.block), calls[group.block])
        magnitude = _magnitude(work, group, inputs)
        return [search_scales(matrices, magnitude, work.grid, loss, dtype, work.check)]
    found = [Scales(torch.ones(group.width), None)] * fold.num_experts
    for piece in pieces:
        own = inputs[work.input_of(group, piece)]
        if own.count:
            assert piece.expert is not None
            weight = work.matrix(piece)
            found[piece.expert] = search_scales(
                [weight], own.mean_magnitude, work.grid, _product_loss(own, weight), dtype,
                work.check,
            )  # fmt: skip
    return found


def search_scales(
    weights: Sequence[Tensor],
    magnitude: Tensor,
    grid: Grid,
    loss: Callable[[], float],
    dtype: torch.dtype,
    check: Callable[[], None],
) -> Scales:
    """The scales with which `loss()` is least when `weights` [N, K] are scaled, rounded and scaled
    back, in place. They have their values again afterwards, which are numbers of `dtype`."""
    kept = [weight.to(dtype, copy=True) for weight in weights]
    best, least = Scales(torch.ones_like(magnitude), None), float("inf")
    try:
        for candidate in _candidates(kept, magnitude, grid):
            check()
            for weight, original in zip(weights, kept, strict=True):
                for part in row_tiles(weight):
                    scaled = original[part].float() * candidate.values
                    weight[part] = grid.rounded(scaled).div_(candidate.values)
            found = loss()
            if found < least:
                best, least = candidate, found
    finally:
        for weight, original in zip(weights, kept, strict=True):
            weight.copy_(original)
    return best


def _candidates(weights: Sequence[Tensor], magnitude: Tensor, grid: Grid) -> Iterator[Scales]:
    yield Scales(torch.ones_like(magnitude), None)
    relative = _relative_magnitude(weights, grid.group_size)
    for step in range(RATIOS):
        ratio = step / RATIOS
        scales = magnitude.pow(ratio) / (relative.pow(1 - ratio) + 1e-4)
        scales = scales.clamp_min(1e-4)
        scales = scales / (scales.max() * scales.min()).sqrt()
        if bool(torch.isfinite(scales).all()):
            yield Scales(scales, ratio)


def _relative_magnitude(weights: Sequence[Tensor], group_size: int) -> Tensor:
    """[K]: mean over all outputs of |w| over the largest of its group."""
    total, rows = torch.zeros(weights[0].shape[1]), 0
    for weight in weights:
        total += _shares(weight, group_size)[:, : len(total)].sum(0)
        rows += weight.shape[0]
    return total / rows


def _shares(weight: Tensor, group_size: int) -> Tensor:
    """|w| over the largest of its group, [N, K] or wider: the one copy in float32 that is made."""
    groups = in_groups(weight.abs().float(), group_size)
    return groups.div_(groups.amax(-1, keepdim=True).clamp_min_(1e-12)).flatten(1)


def _product_loss(inputs: Inputs, weight: Tensor) -> Callable[[], float]:
    rows = inputs.rows()
    output = rows @ weight.t()

    def loss() -> float:
        return _finite((rows @ weight.t()).sub_(output).square_().sum())

    return loss


def _block_loss(work: LayerWork, block: nn.Module, calls: list[_Call]) -> Callable[[], float]:
    assert calls, "the block was not called"

    def loss() -> float:
        total = torch.zeros(())
        for call in calls:
            work.check()
            output = _first(block(*call.args, **call.kwargs))
            total += (output - call.output).square_().sum()
        return _finite(total)

    return loss


def _finite(value: Tensor) -> float:
    return float(value) if bool(torch.isfinite(value)) else float("inf")


def _magnitude(work: LayerWork, group: Group, inputs: dict[Product, Inputs]) -> Tensor:
    """[K]: mean |x| of a group's input; of experts alone, over all that they saw."""
    shared = work.shared_input(group)
    if shared is not None:
        return inputs[shared].mean_magnitude
    own = [inputs[work.input_of(group, piece)] for piece in work.group_pieces(group)]
    count = sum(i.count for i in own)
    return torch.stack([i.magnitudes for i in own]).sum(0) / max(1, count)


def _apply(
    work: LayerWork,
    group: Group,
    fold: Fold,
    scales: list[Scales],
    inputs: dict[Product, Inputs],
) -> list[Scales]:
    """Fold the scales in, and into the statistics; what stands before gets values that its file
    can hold. Returns the scales as they were applied."""
    if all(s.ratio is None for s in scales):
        return scales
    values = torch.stack([s.values for s in scales]) if fold.num_experts else scales[0].values
    dtypes = {work.local(p.name): STORED[p.info.dtype] for p in work.targets.placements}
    values = fold.exact(work.layer, values, dtypes[fold.weight])
    fold.apply(work.layer, values)
    work.changed.update(fold.touched)
    for name in fold.touched:
        if name not in work.pieces_of:
            parameter = work.layer.get_parameter(name).data
            parameter.copy_(parameter.to(dtypes[name]))
    for product in {work.input_of(group, piece) for piece in work.group_pieces(group)}:
        own = values[product.expert] if fold.num_experts else values
        inputs[product].scale(own)
    if fold.num_experts:
        return [Scales(v, s.ratio) for v, s in zip(values, scales, strict=True)]
    return [Scales(values, scales[0].ratio)]


def _round(
    work: LayerWork,
    group: Group,
    piece: Piece,
    scales: list[Scales] | None,
    inputs: dict[Product, Inputs],
    store: Store,
) -> None:
    own = inputs[work.input_of(group, piece)]
    weight = work.matrix(piece)
    details: dict[str, object] = {}
    if scales is None:
        details["note"] = "not scaled: no preceding layer to fold the scales into"
    else:
        ratio = scales[piece.expert or 0 if len(scales) > 1 else 0].ratio
        details |= {"scaled": ratio is not None, "ratio": ratio}
    ranges = None
    if not own.count:
        details["note"] = NO_TOKENS
    elif may_clip(piece.module) and own.gram is not None:
        ranges, details["clipped"] = best_ranges(weight, own.gram, work.grid, work.check)
    work.finish(piece, work.grid.round(weight, ranges), own, store, **details)


@contextmanager
def _recorded(layer: nn.Module, calls: dict[str, list[_Call]]) -> Iterator[None]:
    """Records the calls of the blocks of `calls` inside of it."""

    def note(found: list[_Call], module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.append(_Call(args, kwargs, _first(output)))

    handles = [
        layer.get_submodule(path).register_forward_hook(partial(note, found), with_kwargs=True)
        for path, found in calls.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
