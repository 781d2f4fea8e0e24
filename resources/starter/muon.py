"""Muon: momentum whose update is made orthogonal, for the weight matrices of a small model.

Source: K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024). The time
of its products is small beside that of a step of 2048 tokens, and few steps are all there is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

# The quintic of the source: its slope at zero is steep, so that small singular values grow fast.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Bring the singular values of [count, rows, columns] matrices near one (Newton-Schulz)."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices only."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices; those of one shape are made orthogonal together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    by_shape[param.shape].append(param)
            for (rows, columns), params in by_shape.items():
                update = orthogonalized(
                    torch.stack([self._momentum(param, group["momentum"]) for param in params])
                )
                scale = max(1.0, rows / columns) ** 0.5
                for param, change in zip(params, update, strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"])
                    param.add_(change, alpha=-group["lr"] * scale)

    def _momentum(self, param: torch.nn.Parameter, factor: float) -> torch.Tensor:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        assert param.grad is not None
        buffer: torch.Tensor = state["momentum"]
        buffer.lerp_(param.grad, 1 - factor)
        return param.grad.lerp(buffer, factor)
