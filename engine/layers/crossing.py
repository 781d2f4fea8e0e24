"""Carries what layers are given to the device on which they compute, in a model that is divided."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.device_map import DeviceMap
from engine.transfer import upload


def cross(model: nn.Module, device_map: DeviceMap) -> None:
    """Let every layer on the second device take its arguments from the first: hidden states once a
    step, and what all layers share (rotary tables, positions) once as well. Nobody waits for the
    copies. In a model on one device nothing happens."""
    if not device_map.is_divided:
        return
    carried = _Carried(torch.device(device_map.device))
    body: nn.Module = model.base_model  # type: ignore[assignment]
    body.register_forward_pre_hook(carried.forget)
    body.register_forward_hook(carried.forget)
    layers = list(model.get_submodule(device_map.layers))  # type: ignore[call-overload]
    for layer in layers[device_map.host_layers :]:
        layer.register_forward_pre_hook(carried.carry, with_kwargs=True)


class _Carried:
    """The tensors of one step that were copied to `device`, by the tensor that they are a copy
    of."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # the original is kept: ids are reused

    def forget(self, *_: Any) -> None:
        """What was copied belongs to the step before."""
        self._copies.clear()

    def carry(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._moved(args), self._moved(kwargs)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if value.device == self._device else self._copy(value)
        if isinstance(value, dict):
            return {name: self._moved(one) for name, one in value.items()}
        if type(value) in (tuple, list):
            return type(value)(map(self._moved, value))
        return value

    def _copy(self, tensor: Tensor) -> Tensor:
        known = self._copies.get(id(tensor))
        if known is None:
            known = self._copies[id(tensor)] = (tensor, upload(tensor, self._device))
        return known[1]
