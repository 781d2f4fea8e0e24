"""Quantized experts of a mixture: one after the other, or in one launch on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.kernels.experts import Route, StackedExperts, stacked
from engine.kernels.linear import PlainWeights
from engine.kernels.weights import Weights
from engine.models.layers.replacement import ModuleSwap
from engine.models.materialise import Slot
from engine.numerics.experts import is_experts

EXPERTS = "experts"


class QuantizedExperts(nn.Module):
    """The quantized form of a transformers experts module: per token and chosen expert
    down(gate(gate_up(x))), weighted and summed. Biases [experts, out] are not quantized.

    `original` provides the gate (its activation, its order of gate and up) and keeps no weights.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self._original = (original,)  # in a tuple: not a submodule
        self.first_name = "gate_up_proj" if original.has_gate else "up_proj"
        self.num_experts = int(original.get_parameter("down_proj").shape[0])
        self.is_transposed = bool(original.is_transposed)
        self._weights: dict[str, list[Weights]] = {}
        self._together: dict[str, StackedExperts | None] = {}
        for name in (self.first_name, "down_proj"):
            bias = getattr(original, f"{name}_bias", None)
            self.register_parameter(f"{name}_bias", bias)

    def pack(self, name: str, weights: Sequence[Weights]) -> None:
        """Take the weights [out, in] of all experts for "gate_up_proj", "up_proj" or
        "down_proj"."""
        assert len(weights) == self.num_experts
        self._weights[name] = list(weights)
        self._together[name] = stacked(self._weights[name])

    @property
    def packed_bytes(self) -> int:
        return sum(weights.nbytes for found in self._weights.values() for weights in found)

    @property
    def num_weights(self) -> int:
        """Parameters that are quantized."""
        return sum(math.prod(w.shape) for found in self._weights.values() for w in found)

    @property
    def title(self) -> str:
        found = {weights.title: None for found in self._weights.values() for weights in found}
        return " and ".join(found)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [T, H], chosen experts [T, k] and their weights [T, k] -> [T, H]."""
        first, down = self._together[self.first_name], self._together["down_proj"]
        if first is not None and down is not None:
            return self._by_kernels(first, down, hidden_states, top_k_index, top_k_weights)
        chosen = top_k_index.reshape(-1)
        counts = torch.bincount(chosen, minlength=self.num_experts)[: self.num_experts].tolist()
        # in the order of experts, so that a token's sum does not depend on the other tokens
        places = torch.argsort(chosen, stable=True)
        tokens = places // top_k_index.shape[-1]
        shares = top_k_weights.reshape(-1)
        result = torch.zeros_like(hidden_states)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                mine = tokens[start : start + count]
                inner = self._gated(self._product(self.first_name, expert, hidden_states[mine]))
                output = self._product("down_proj", expert, inner)
                output = output * shares[places[start : start + count]].unsqueeze(-1)
                result.index_add_(0, mine, output.to(result.dtype))
            start += count
        return result

    def _by_kernels(
        self,
        first: StackedExperts,
        down: StackedExperts,
        hidden_states: Tensor,
        top_k_index: Tensor,
        top_k_weights: Tensor,
    ) -> Tensor:
        """All experts in two products, which wait for nothing. A token's sum runs over its experts
        in the order of its choice, in float32."""
        route = Route(top_k_index, self.num_experts)
        before: Tensor | None = getattr(self, f"{self.first_name}_bias")
        after: Tensor | None = getattr(self, "down_proj_bias")  # noqa: B009  (a module, to mypy)
        inner = self._gated(first.product(hidden_states, route, before, route.slots))
        found = down.product(inner, route, after, 1)
        by_token = found.view(*top_k_index.shape, -1).float()
        summed = (by_token * top_k_weights.unsqueeze(-1).float()).sum(1)
        return summed.to(hidden_states.dtype)

    def _product(self, name: str, expert: int, x: Tensor) -> Tensor:
        bias: Tensor | None = getattr(self, f"{name}_bias")
        return self._weights[name][expert].product(x, None if bias is None else bias[expert])

    def _gated(self, x: Tensor) -> Tensor:
        original: Any = self._original[0]
        if not original.has_gate:
            return original.act_fn(x)
        return original._apply_gate(x)


class ExpertsSwap(ModuleSwap):
    """Replaces the original experts with QuantizedExperts, which have plain weights during the
    check."""

    def apply(self) -> None:
        replacement, original = self.replacement, self.original
        assert isinstance(replacement, QuantizedExperts)
        for name in (replacement.first_name, "down_proj"):
            plain: Tensor = getattr(original, name)
            if not plain.is_meta:
                each = [w.t() if replacement.is_transposed else w for w in plain]
                replacement.pack(name, [PlainWeights(weight) for weight in each])
        super().apply()


def experts_swaps(model: nn.Module) -> Iterator[ExpertsSwap]:
    for parent in list(model.modules()):
        for name, module in list(parent._modules.items()):
            if module is not None and is_experts(module):
                experts = QuantizedExperts(module)  # whose biases stay plain
                slots = {bias: Slot(experts, bias) for bias, _ in experts.named_parameters()}
                yield ExpertsSwap(EXPERTS, parent, name, module, experts, slots)
