"""Folds input scales of a group into the preceding operation, without changing the layer's output.

    norm.weight / s        up.weight rows / s
         |                        |
    q, k, v columns * s     down columns * s

Whether this works is not looked up by architecture but tested: with random scales the layer's
output must stay the same (in float32), and without the division it must not. A norm may multiply by
its weight or by 1 + weight; both are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.quantize.groups import Group, Reader

TOLERANCE = 1e-4  # of the layer's output, relative
_CONTRAST = 20  # a wrong scale must change the output by so many times more than the right one


@dataclass(frozen=True)
class Fold:
    """Where a group's input scales can be folded in.

    Either a norm is divided (its `weight` and `bias`; is_plus_one: it multiplies by 1 + weight), or
    rows `start` .. `start + width` of a matrix with its bias.
    """

    readers: tuple[Reader, ...]
    width: int
    weight: str
    bias: str | None
    is_norm: bool
    is_plus_one: bool = False
    is_transposed: bool = False
    start: int = 0
    num_experts: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the scales: [K], or [E, K] where each expert has its own."""
        return (self.num_experts, self.width) if self.num_experts else (self.width,)

    @property
    def touched(self) -> tuple[str, ...]:
        divided = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return (*divided, *(reader.parameter for reader in self.readers))

    def apply(self, layer: nn.Module, scales: Tensor) -> None:
        """Divide the preceding operation by `scales` and multiply the readers' columns."""
        self.divide(layer, scales)
        self.multiply(layer, scales)

    def multiply(self, layer: nn.Module, scales: Tensor) -> None:
        for reader in self.readers:
            weight = layer.get_parameter(reader.parameter).data
            if reader.num_experts and self.num_experts:
                columns = scales.unsqueeze(-1 if reader.is_transposed else -2)
            else:
                columns = scales.unsqueeze(-1) if reader.is_transposed else scales
            weight.mul_(columns)

    def divide(self, layer: nn.Module, scales: Tensor) -> None:
        weight = layer.get_parameter(self.weight).data
        if self.is_norm:
            if self.is_plus_one:
                weight.copy_((weight + 1) / scales - 1)
            else:
                weight.div_(scales)
        else:
            rows = weight.transpose(-1, -2) if self.is_transposed else weight
            rows[..., self.start : self.start + self.width, :].div_(scales.unsqueeze(-1))
        if self.bias is not None:
            bias = layer.get_parameter(self.bias).data
            bias[..., self.start : self.start + self.width].div_(scales)

    def exact(self, layer: nn.Module, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Scales next to `scales` with which a norm's weight is the same once stored in `dtype`:
        what rounding would change there is moved into the readers' columns."""
        if not self.is_norm:
            return scales
        weight = layer.get_parameter(self.weight).data
        gain = weight + 1 if self.is_plus_one else weight
        stored = ((gain / scales) - 1 if self.is_plus_one else gain / scales).to(dtype).float()
        after = stored + 1 if self.is_plus_one else stored
        exact = gain / after
        is_usable = torch.isfinite(exact) & (exact > 0) & (gain != 0)
        return torch.where(is_usable, exact, scales)


def find_fold(
    layer: nn.Module,
    group: Group,
    groups: Sequence[Group],
    run: Callable[[], Tensor],
    frozen: frozenset[str] = frozenset(),
) -> Fold | None:
    """The way to scale `group`'s input that was seen to leave the layer's output alone, or None.

    `groups` are all of the layer in order, `run` gives the layer's output. Parameters in `frozen`
    cannot be changed.
    """
    generator = torch.Generator().manual_seed(len(groups))
    reference: Tensor | None = None
    for fold in _candidates(layer, group, groups):
        if frozen & set(fold.touched):
            continue
        if reference is None:
            reference = run()
        scales = torch.exp2(torch.rand(fold.shape, generator=generator) * 2 - 1)
        if _holds(layer, fold, scales, run, reference):
            return fold
    return None


def _holds(
    layer: nn.Module, fold: Fold, scales: Tensor, run: Callable[[], Tensor], reference: Tensor
) -> bool:
    kept = {name: layer.get_parameter(name).data.clone() for name in fold.touched}
    try:
        fold.multiply(layer, scales)
        wrong = _distance(run(), reference)
        fold.divide(layer, scales)
        right = _distance(run(), reference)
    finally:
        for name, value in kept.items():
            layer.get_parameter(name).data.copy_(value)
    return right <= TOLERANCE and right * _CONTRAST <= wrong


def _distance(output: Tensor, reference: Tensor) -> float:
    difference = float((output - reference).norm() / reference.norm().clamp_min(1e-30))
    return difference if difference == difference else float("inf")  # not a number: far off


def _candidates(layer: nn.Module, group: Group, groups: Sequence[Group]) -> Iterator[Fold]:
    if group.norm is not None:
        prefix = f"{group.norm}." if group.norm else ""
        weight = f"{prefix}weight"
        if layer.get_parameter(weight).numel() == group.width:
            bias = _present(layer, f"{prefix}bias")
            for is_plus_one in (False, True):
                if not (is_plus_one and bias is not None):
                    yield Fold(group.readers, group.width, weight, bias, True, is_plus_one)
            if bias is not None:  # such norms exist (nemotron)
                yield Fold(group.readers, group.width, weight, bias, True, True)
        return
    if len(group.readers) != 1:
        return
    reader = group.readers[0]
    position = groups.index(group)
    for before in reversed(groups[:position]):
        for maker in reversed(before.readers):
            yield from _rows(layer, group, reader, maker)


def _rows(layer: nn.Module, group: Group, reader: Reader, maker: Reader) -> Iterator[Fold]:
    """The last rows of a matrix (up of gate and up, v of q, k and v), or the first."""
    if (maker.num_experts if group.is_per_expert else 0) != reader.num_experts:
        return
    if maker.num_experts and not group.is_per_expert:
        return
    shape = layer.get_parameter(maker.parameter).shape
    outputs = shape[-1] if maker.is_transposed else shape[-2]
    if outputs < group.width:
        return
    bias = _bias_of(layer, maker.parameter)
    last = outputs - group.width
    starts = [last, 0] if 0 < last <= group.width else [last]
    for start in starts:
        yield Fold(
            group.readers, group.width, maker.parameter, bias, False,
            is_transposed=maker.is_transposed, start=start,
            num_experts=reader.num_experts if group.is_per_expert else 0,
        )  # fmt: skip


def _bias_of(layer: nn.Module, weight: str) -> str | None:
    if weight.endswith(".weight"):
        return _present(layer, weight.removesuffix("weight") + "bias")
    return _present(layer, f"{weight}_bias")  # experts


def _present(layer: nn.Module, name: str) -> str | None:
    path, _, attribute = name.rpartition(".")
    return name if layer.get_submodule(path)._parameters.get(attribute) is not None else None
