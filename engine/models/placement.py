"""Assigns the modules of a model to devices, for CPU offload."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine.attention.interface import NAME, register
from engine.errors import UnsupportedModelError, describe
from engine.hardware.device_map import DeviceMap
from engine.models.architecture import shares_kv
from engine.models.layers.replacement import list_of_layers
from engine.runner.model_runner import forward, without_padding_check


def place(reference: nn.Module, device: str, host_layers: int) -> DeviceMap:
    """`reference`, the unmodified class on the meta device, with so many of its layers, and what
    comes before them, on the CPU, and all else on `device`. Raises UnsupportedModelError for a
    class of which that is not found out."""
    if any(map(shares_kv, reference.modules())):
        raise not_offloadable(reference, "layers share the KV cache of earlier layers.")
    path, layers = list_of_layers(reference)
    paths = {id(module): path for path, module in reference.named_modules()}
    before: list[str] = []
    for module in dict.fromkeys(_before(reference, layers)):  # some are called more than once
        if layers not in module.modules():
            before.append(paths[id(module)])
        else:  # it is computed around the layers: what it has itself counts, not what is in it
            own = (*module._parameters, *module._buffers)
            before += [f"{paths[id(module)]}.{one}".removeprefix(".") for one in own]
    return DeviceMap(device, host_layers, path, tuple(before))


class _ReachedLayersError(Exception):
    pass


def _before(model: nn.Module, layers: nn.ModuleList) -> list[nn.Module]:
    """Modules with own tensors that run before the layers."""
    inside = {id(module) for module in layers.modules()}
    called: list[nn.Module] = []

    def note(module: nn.Module, *_: Any) -> None:
        called.append(module)

    def stop(*_: Any) -> None:
        raise _ReachedLayersError

    hooks = [layers[0].register_forward_pre_hook(stop)]
    hooks += [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if id(module) not in inside and (module._parameters or module._buffers)
    ]
    without_padding_check(model)
    register()
    config: Any = model.config
    attention = config._attn_implementation
    config._attn_implementation = NAME  # others want masks, which look at the positions
    one = torch.zeros(1, dtype=torch.int64, device="meta")
    try:
        with torch.inference_mode():
            forward(model, one, one, one)
        problem = "the forward pass called no layers"
    except _ReachedLayersError:
        return called
    except Exception as error:  # a class of transformers may raise anything
        problem = describe(error).cause
    finally:
        config._attn_implementation = attention
        for hook in hooks:
            hook.remove()
    raise not_offloadable(model, f"cannot identify modules before the layers ({problem}).")


def not_offloadable(model: nn.Module, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} does not support CPU offload: {why}",
        'Set gpu_layers to "all", or set device to cpu.',
    )
