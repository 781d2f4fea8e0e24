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


def carry_between_stages(model: nn.Module, device_map: DeviceMap) -> None:
    """For a model that is loaded onto the devices of `device_map`; nothing is done where its layers
    are on one GPU. While a layer computes, its GPU is the current one of the thread; after a pass
    that is the last one's."""
    if not device_map.starts:
        return
    known: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def forget(*_: Any) -> None:
        """What was copied belongs to the pass before."""
        known.clear()

    layers = list(model.get_submodule(device_map.layers))  # type: ignore[call-overload]
    for index, layer in enumerate(layers):
        enter = _Enter(known, device_map.of_layer(index))
        layer.register_forward_pre_hook(enter, with_kwargs=True)
    layers[0].register_forward_pre_hook(forget)
    layers[-1].register_forward_hook(forget)


class _Enter:
    """Before a layer on `device`. known: copies by the tensor that was copied, which is kept so
    that its id is not used again, and where to."""

    def __init__(
        self, known: dict[tuple[int, torch.device], tuple[Tensor, Tensor]], device: str
    ) -> None:
        self._known, self._name, self._device = known, device, torch.device(device)

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        make_current(self._name)
        return self._moved(args), self._moved(kwargs)

    def _moved(self, value: Any) -> Any:
        return carried(value, self._device, self._copy)

    def _copy(self, tensor: Tensor) -> Tensor:
        key = id(tensor), self._device
        if key not in self._known:
            self._known[key] = (tensor, tensor.to(self._device, non_blocking=True))
        return self._known[key][1]
