"""Carries what layers are given from GPU to GPU, in a model whose layers are on several.

    cuda:0   embeddings | layer 0 | ... | layer 15 |
    cuda:1                                         | layer 16 | ... | norm | output head

Nobody waits for what is copied: torch launches the copy behind what both GPUs compute at that time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.device_map import DeviceMap
from engine.devices import make_current
from engine.layers.carried import carried


class Stages:
    """Of `model`, loaded onto the devices of `device_map`. While a layer computes, its GPU is the
    current one of the thread; after a pass that is the last one's."""

    def __init__(self, model: nn.Module, device_map: DeviceMap) -> None:
        self._carried: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        layers = list(model.get_submodule(device_map.layers))  # type: ignore[call-overload]
        for index, layer in enumerate(layers):
            enter = _Enter(self._carried, device_map.of_layer(index))
            layer.register_forward_pre_hook(enter, with_kwargs=True)
        layers[0].register_forward_pre_hook(self._forget)
        layers[-1].register_forward_hook(self._forget)

    def _forget(self, *_: Any) -> None:
        """What was copied belongs to the pass before."""
        self._carried.clear()


class _Enter:
    """Before a layer on `device`. carried: by the tensor that was copied, which is kept so that its
    id is not used again, and where to."""

    def __init__(
        self, carried: dict[tuple[int, torch.device], tuple[Tensor, Tensor]], device: str
    ) -> None:
        self._carried, self._name, self._device = carried, device, torch.device(device)

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        make_current(self._name)
        return self._moved(args), self._moved(kwargs)

    def _moved(self, value: Any) -> Any:
        return carried(value, self._device, self._copy)

    def _copy(self, tensor: Tensor) -> Tensor:
        key = id(tensor), self._device
        known = self._carried.get(key)
        if known is None:
            copy = tensor.to(self._device, non_blocking=True)
            known = self._carried[key] = (tensor, copy)
        return known[1]


def stages_of(model: nn.Module, device_map: DeviceMap) -> Stages | None:
    """None where the layers are on one GPU. The model keeps it."""
    return Stages(model, device_map) if device_map.starts else None
