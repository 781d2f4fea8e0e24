"""The device of each part of a model.

    cpu       embeddings | layer 0 | ... | layer n - 1 |
    cuda:0                                             | layer n | ... | norm | output head

A model that is larger than GPU memory has its first layers and their KV cache on the CPU: each
layer is computed where its weights are. Only one vector per token crosses between the devices, once
per step. A step starts where token ids are known and ends where they are sampled, so the host still
waits for the GPU once per step. (llama.cpp splits models in the same way: `--gpu-layers`, LM
Studio's "GPU offload".)

Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.hardware.devices import CPU, is_cuda

ALL, AUTO = "all", "auto"
CHOICES = (AUTO, ALL)
"""Of the setting gpu_layers, besides a number."""


def check_gpu_layers(value: object) -> None:
    """Raise ConfigError unless `value` is the number of a model's layers, as text."""
    if isinstance(value, str) and re.fullmatch("0*[1-9][0-9]{0,5}", value):
        return
    raise ConfigError(
        f"Invalid gpu_layers: {str(value)[:60]!r}.",
        'Use "auto", "all" or 1 to 999,999 layers. To run without a GPU, set device to cpu.',
    )


def host_layers_of(device: str, gpu_layers: str, num_layers: int) -> int | None:
    """Number of layers that the CPU computes beside `device` (resolved); None if free memory
    decides."""
    if not is_cuda(device) or gpu_layers == ALL:
        return 0
    return None if gpu_layers == AUTO else max(0, num_layers - int(gpu_layers))


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Assigns layers and modules to devices. device: of the whole model, or, with CPU offload of
    the first `host_layers`, of the other layers and everything after them. layers: path of the list
    of layers. before: paths of the modules that run before the layers."""

    device: str
    host_layers: int = 0
    layers: str = ""
    before: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """In the order in which a step runs through them."""
        return (CPU, self.device) if self.host_layers else (self.device,)

    def of_layer(self, index: int) -> str:
        return CPU if index < self.host_layers else self.device

    def of(self, path: str) -> str:
        """The device of a module, a parameter or a buffer."""
        if len(self.devices) == 1:
            return self.device
        if is_inside(path, self.layers):
            index = path[len(self.layers) + 1 :].partition(".")[0]
            return self.of_layer(int(index)) if index.isdigit() else self.device
        is_before = any(is_inside(path, module) for module in self.before)
        return self.devices[0] if is_before else self.device


def is_inside(path: str, module: str) -> bool:
    return path == module or path.startswith(module + ".")
