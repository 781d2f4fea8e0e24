"""Puts the simulated GPUs where torch and Triton look for one. Once, for the whole process."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._device

from tests.gpu.simulated import devices, graphs, pinned, streams
from tests.gpu.simulated.machine import machine
from tests.gpu.simulated.tensors import DeviceTensor, copy, launch, made, real_of

NAME, CAPABILITY = "Simulated GPU", (9, 0)
SYNC_MODES = ("default", "warn", "error")


def install() -> None:
    """Raises AssertionError where a GPU is there: nothing is to be simulated then."""
    assert not torch.cuda.is_available(), "there is a GPU"
    os.environ["TRITON_INTERPRET"] = "1"
    devices.install_guard()
    _install_factories()
    _install_cuda()
    _install_triton()


def _install_factories() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "CUDA")
    library.impl("empty_strided", _empty_strided, "CUDA")
    # by default these grow an empty one
    for name in ("arange", "arange.start", "arange.start_step"):
        library.impl(name, partial(_computed, name), "CUDA")
    library.impl("copy_", copy, "CUDA")  # torch.tensor passes by what tensors say of themselves
    _kept.append(library)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # module.to(device)
    torch.utils._device._device_constructors()  # remembers what stands there now
    torch.empty, torch.zeros = pinned.empty, pinned.zeros  # type: ignore[assignment]
    torch.Tensor.is_pinned = pinned.is_pinned  # type: ignore[method-assign]
    torch.Tensor.pin_memory = pinned.pin_memory  # type: ignore[method-assign]


_kept: list[torch.library.Library] = []  # what is registered goes with it


def _empty(size: Any, dtype: Any = None, device: Any = None, **_: Any) -> DeviceTensor:
    return made(lambda: pinned._empty(size, dtype=dtype), device=device)


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, device: Any = None, **_: Any
) -> DeviceTensor:
    return made(lambda: torch.empty_strided(size, stride, dtype=dtype), device=device)


def _computed(
    name: str, *numbers: Any, dtype: Any = None, device: Any = None, **_: Any
) -> DeviceTensor:
    packet, _, overload = name.partition(".")
    compute = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return made(lambda: compute(*numbers, dtype=dtype), device=device)


def _install_cuda() -> None:
    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(machine.gpus),
        "current_device": devices.current,
        "set_device": devices.set_current,
        "device": devices.inside,
        "can_device_access_peer": lambda device, peer: devices.index_of(device) != peer,
        "get_device_properties": _properties,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: NAME,
        "get_arch_list": lambda: ["sm_90"],
        "mem_get_info": _mem_get_info,
        "memory_allocated": lambda device=None: devices.gpu_of(device).allocated,
        "memory_reserved": lambda device=None: devices.gpu_of(device).allocated,
        "max_memory_allocated": lambda device=None: devices.gpu_of(device).peak,
        "reset_peak_memory_stats": _reset_peak,
        "empty_cache": lambda: None,
        "set_per_process_memory_fraction": _limit,
        "set_sync_debug_mode": _set_sync_mode,
        "get_sync_debug_mode": lambda: SYNC_MODES.index(machine.sync_mode),
        "manual_seed_all": lambda seed: None,
        "graph_pool_handle": list,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": streams.stream_of,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
        "CUDAGraph": graphs.Graph,
        "graph": graphs.capture,
        "is_current_stream_capturing": lambda: machine.recording is not None,
    }
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.version.cuda = "13.0"


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name=NAME, major=CAPABILITY[0], minor=CAPABILITY[1], uuid="", L2_cache_size=2**20,
        total_memory=devices.gpu_of(device).total, multi_processor_count=4,
        shared_memory_per_block_optin=227 * 1024,
    )  # fmt: skip


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    gpu = devices.gpu_of(device)
    return gpu.free, gpu.total


def _reset_peak(device: Any = None) -> None:
    gpu = devices.gpu_of(device)
    gpu.peak = gpu.allocated


def _limit(fraction: float, device: Any = None) -> None:
    gpu = devices.gpu_of(device)
    gpu.limit = int(fraction * gpu.total)


def _set_sync_mode(mode: int | str) -> None:
    machine.sync_mode = SYNC_MODES[mode] if isinstance(mode, int) else mode


def _install_triton() -> None:
    from triton.runtime.interpreter import GridExecutor

    call = GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        tensors = [value for value in given if isinstance(value, DeviceTensor)]
        if any(isinstance(v, torch.Tensor) and not v.is_cuda for v in given):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        here = torch.device("cuda", devices.current())
        for stranger in [t for t in tensors if t.device != here]:  # it launches on the current one
            raise ValueError(f"Pointer argument of {stranger.device} in a launch on {here}")
        reals = [real_of(value) for value in args]
        named = {name: real_of(value) for name, value in kwargs.items()}
        name = getattr(self.fn, "__name__", "a kernel")
        with machine.lock:
            launch(name, lambda: call(self, *reals, **named), tensors, tensors)

    GridExecutor.__call__ = launched
