"""Moves the inputs of layers from the CPU to the GPU, for CPU offload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.batch.transfer import host_buffer, upload
from engine.errors import UnsupportedModelError
from engine.hardware.device_map import DeviceMap


def carried(value: Any, device: torch.device, copy: Callable[[Tensor], Tensor]) -> Any:
    """Nested arguments with what `copy` makes of each tensor that is on another device."""
    if isinstance(value, Tensor):
        return value if value.device == device else copy(value)
    if isinstance(value, dict):
        return {name: carried(one, device, copy) for name, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(carried(one, device, copy) for one in value)
    return value


class _Half(Enum):
    CPU = "cpu"
    GPU = "gpu"
    NONE = "none"  # no layer is computed


class _HalfDoneError(Exception):
    """Ends a pass at the last GPU layer, once its inputs are known."""


class SplitForward:
    """The forward pass of `model`, split between the devices of `device_map`. Copies between them
    do not block the host."""

    def __init__(self, model: nn.Module, device_map: DeviceMap) -> None:
        self._device = torch.device(device_map.device)
        layers = list(model.get_submodule(device_map.layers))  # type: ignore[call-overload]
        self._on_cpu = layers[: device_map.host_layers]
        self._on_gpu = layers[device_map.host_layers :]
        self._half: _Half | None = None
        # by the tensor of the CPU, which is kept so that its id is not used again
        self._carried: dict[int, tuple[Tensor, Tensor]] = {}
        self._static: list[Tensor] = []
        self._num_results: int | None = None  # of a layer, where it returns a tuple
        layers[0].register_forward_pre_hook(self._forget)
        layers[0].register_forward_hook(self._learn)
        for layer in self._on_gpu:
            layer.register_forward_pre_hook(self._carry, with_kwargs=True)
        layers[-1].register_forward_hook(self._forget)

    def open(self, num_tokens: int, run: Callable[[], object]) -> None:
        """Make room for steps of up to so many tokens, which `run` passes through the model. Raises
        UnsupportedModelError where a half cannot be computed by itself."""
        self.close()
        for half, layers in ((_Half.GPU, self._on_cpu), (_Half.CPU, self._on_gpu)):
            for layer in layers:
                layer.forward = partial(self._pass_by, half, layer.forward)
        with self._computing(_Half.NONE):
            _until_half(run)
            given = [tensor for tensor, _ in self._carried.values()]
        for tensor in given:
            if tensor.dim() < 2 or tensor.shape[:2] != (1, num_tokens):
                self.close()
                shape = list(tensor.shape)
                raise UnsupportedModelError(
                    f"the layers expect input shape {shape} instead of one row per token"
                )
            self._static.append(torch.zeros_like(tensor, device=self._device))

    def close(self) -> None:
        """Compute whole passes again, and give the static memory back."""
        self._static = []
        for layer in (*self._on_cpu, *self._on_gpu):
            around = layer.__dict__.get("forward")
            if isinstance(around, partial) and around.func == self._pass_by:
                del layer.forward
                if (forward := around.args[1]) != layer.forward:  # a replacement, not the class's
                    layer.forward = forward

    def compute_on_cpu(self, run: Callable[[], object]) -> None:
        """The first half of a pass; its results are in static memory."""
        with self._computing(_Half.CPU):
            _until_half(run)
            if len(self._carried) != len(self._static):
                raise RuntimeError("a layer on the GPU got other inputs than at capture")

    def compute_on_gpu(self, run: Callable[[], Tensor]) -> Tensor:
        """The second half, with the current contents of static memory."""
        with self._computing(_Half.GPU):
            return run()

    @contextmanager
    def _computing(self, half: _Half) -> Iterator[None]:
        self._half = half
        self._carried.clear()
        try:
            yield
        finally:
            self._half = None
            self._carried.clear()

    def _pass_by(self, half: _Half, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In the place of a layer's forward; `half`: in which it is not computed."""
        if self._half not in (half, _Half.NONE):
            return forward(*args, **kwargs)
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        if self._num_results is None:
            return hidden
        return (hidden, *[None] * (self._num_results - 1))

    def _forget(self, *_: Any) -> None:
        """What was copied belongs to the pass before."""
        if self._half is None:
            self._carried.clear()

    def _learn(self, layer: nn.Module, args: Any, output: Any) -> None:
        self._num_results = len(output) if isinstance(output, tuple) else None

    def _carry(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        moved = (
            carried(args, self._device, self._copy), carried(kwargs, self._device, self._copy)
        )  # fmt: skip
        if self._half in (_Half.CPU, _Half.NONE):
            if layer is self._on_gpu[-1]:
                raise _HalfDoneError
            return args, kwargs
        return moved

    def _copy(self, tensor: Tensor) -> Tensor:
        known = self._carried.get(id(tensor))
        if known is None:
            known = self._carried[id(tensor)] = (tensor, self._new_copy(tensor))
        return known[1]

    def _new_copy(self, tensor: Tensor) -> Tensor:
        if self._half is None:
            return upload(tensor, self._device)
        if self._half is _Half.NONE:
            return tensor
        place = len(self._carried)
        if place >= len(self._static):
            raise RuntimeError("a layer on the GPU got other inputs than at capture")
        static = self._static[place][:, : tensor.shape[1]]
        if self._half is _Half.CPU:
            host = host_buffer(tensor.shape, tensor.dtype, self._device).copy_(tensor)
            static.copy_(host, non_blocking=True)
        return static


def _until_half(run: Callable[[], object]) -> None:
    try:
        run()
    except _HalfDoneError:
        return
    raise RuntimeError("no layer on the GPU was called")
