"""Positions for attention modules that count the tokens before them.

Llama 4 scales queries of layers without rotary by a function of their position. It computes
positions from the length of a row and of transformers' cache; here a row has tokens of many
requests, and the positions of the step stand in for that length.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Offsets(NamedTuple):
    """In place of transformers' cache, for one layer. positions: of the row, [1, T]."""

    positions: Tensor

    def get_seq_length(self, _: int) -> Tensor:
        """How far each token of the row is from its place in it: [T]."""
        positions = self.positions[0]
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, keys: Tensor, values: Tensor, _: int, kwargs: dict[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        return keys, values


def give_positions(model: nn.Module) -> None:
    """Let every layer whose queries depend on the position read it from `position_ids`."""
    for module in model.modules():
        attention: Any = getattr(module, "self_attn", None)
        if getattr(attention, "attn_temperature_tuning", False) and not attention.use_rope:
            # renamed in transformers 5.24
            is_new = "cache" in inspect.signature(module.forward).parameters
            hook = partial(_with_offsets, "cache" if is_new else "past_key_values")
            module.register_forward_pre_hook(hook, with_kwargs=True)


def _with_offsets(
    cache: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """cache: the name of that argument of the layer."""
    if kwargs.get(cache) is not None or kwargs.get("position_ids") is None:
        return None
    return args, {**kwargs, cache: _Offsets(kwargs["position_ids"])}
