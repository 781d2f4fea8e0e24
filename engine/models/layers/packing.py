"""Packs q, k and v into one matmul, gate and up into another, without changing a forward.

The module in q_proj's place computes all three and keeps the slices that the modules in k_proj's
and v_proj's places return when they are called with the same input:

    attention.q_proj(x)  ->  packed = x @ [Wq; Wk; Wv]^T; returns packed[..., :Q]
    attention.k_proj(x)  ->  same x: packed[..., Q:Q+K]        (another x: x @ Wk^T)
    attention.v_proj(x)  ->  same x: packed[..., Q+K:]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from engine.kernels.linear import Linear, linear
from engine.kernels.ops import silu_and_mul
from engine.models.layers.replacement import ModuleSwap
from engine.models.materialise import Slot, Slots

QKV = "qkv"
GATE_UP = "gate/up"


class PackedLinear(Linear):
    """Linear layers with the same input, stacked along their outputs.

    `bounds`: the rows where each part starts, and the end. As a module it replaces the first part;
    `Part`s replace the others.
    """

    def __init__(self, parts: list[Linear]) -> None:
        first = parts[0]
        super().__init__(
            first.in_features,
            sum(p.out_features for p in parts),
            bias=first.bias is not None,
            device=first.weight.device,
            dtype=first.weight.dtype,
        )
        self.bounds = [0, *accumulate(p.out_features for p in parts)]
        self._sizes = [p.out_features for p in parts]
        self._input: torch.Tensor | None = None
        self._kept: dict[int, torch.Tensor] = {}

    def rows(self, part: int) -> slice:
        return slice(self.bounds[part], self.bounds[part + 1])

    def slots(self, part: int, prefix: str = "") -> Slots:
        """Where weight and bias of a part are."""
        names = ("weight",) if self.bias is None else ("weight", "bias")
        return {prefix + name: Slot(self, name, self.rows(part)) for name in names}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = super().forward(x).split(self._sizes, dim=-1)
        self._input = x
        self._kept = dict(enumerate(others, start=1))
        return first

    def take(self, part: int, x: torch.Tensor) -> torch.Tensor:
        """The slice of `part` for input `x`: the kept one, if `x` is the input it was made of."""
        if x is self._input and part in self._kept:
            result = self._kept.pop(part)
            if not self._kept:
                self._input = None  # let go of the activations
            return result
        rows = self.rows(part)
        if self.packed is not None:  # it cannot be cut: all parts, for an input that is not shared
            return self.product(x)[..., rows]
        bias = None if self.bias is None else self.bias[rows]
        return linear(x, self.weight[rows], bias)


class Part(nn.Module):
    """Replaces one of the linears inside a PackedLinear."""

    def __init__(self, packed: PackedLinear, part: int) -> None:
        super().__init__()
        self._packed = (packed,)  # in a tuple: not a submodule, or its weight would have two names
        self._part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed[0].take(self._part, x)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) with gate and up in one matmul. x [..., width]."""

    def __init__(self, gate: Linear, up: Linear, down: nn.Module, act_fn: Any) -> None:
        super().__init__()
        self.gate_up_proj = PackedLinear([gate, up])
        self.down_proj = down
        self.act_fn = act_fn
        self._is_silu = _is_silu(act_fn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up_proj.product(x)
        if self._is_silu:  # it may write into the product, which is ours alone
            return self.down_proj(silu_and_mul(gate_up))
        gate, up = gate_up.split(self.gate_up_proj._sizes, dim=-1)
        return self.down_proj(self.act_fn(gate).mul_(up))


def qkv_swaps(model: nn.Module) -> Iterator[ModuleSwap]:
    """For each attention module with q_proj, k_proj and v_proj: a swap for each of the three."""
    names = ("q_proj", "k_proj", "v_proj")
    for parent in list(model.modules()):
        parts = _same_input(parent, names)
        if parts is None:
            continue
        packed = PackedLinear(parts)
        for index, (name, part) in enumerate(zip(names, parts, strict=True)):
            own = Part(packed, index) if index else packed
            yield ModuleSwap(QKV, parent, name, part, own, packed.slots(index))


def gate_up_swaps(model: nn.Module) -> Iterator[ModuleSwap]:
    """For each gated MLP: gate_proj, up_proj, down_proj, act_fn and nothing else."""
    for parent in list(model.modules()):
        for name, module in list(parent._modules.items()):
            if module is None:
                continue
            parts = _same_input(module, ("gate_proj", "up_proj"))
            children = set(module._modules)
            if (
                parts is None
                or not {"gate_proj", "up_proj", "down_proj"} <= children
                or children - {"gate_proj", "up_proj", "down_proj", "act_fn"}
                or parts[0].out_features != parts[1].out_features
                or not callable(getattr(module, "act_fn", None))
                or list(module.parameters(recurse=False))
                or any(True for _ in module.buffers())
            ):
                continue
            gate, up = parts
            mlp = GatedMLP(gate, up, module.get_submodule("down_proj"), module.act_fn)
            packed = mlp.gate_up_proj
            slots = packed.slots(0, "gate_proj.") | packed.slots(1, "up_proj.")
            yield ModuleSwap(GATE_UP, parent, name, module, mlp, slots)


def _same_input(module: nn.Module, names: tuple[str, ...]) -> list[Linear] | None:
    parts = [module._modules.get(name) for name in names]
    linears = [p for p in parts if type(p) is Linear]
    if len(linears) != len(names):
        return None
    alike = all(
        a.in_features == b.in_features
        and (a.bias is None) == (b.bias is None)
        and a.weight.dtype == b.weight.dtype
        for a, b in pairwise(linears)
    )
    return linears if alike else None


def _is_silu(act_fn: Any) -> bool:
    return isinstance(act_fn, nn.SiLU) or type(act_fn).__name__ == "SiLUActivation"
