"""Which of the simulated GPUs is a thread's current one: torch.cuda.set_device and the like."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import torch

from tests.gpu.simulated.machine import Gpu, machine

_CUDA, _META = 1, 14  # c10::DeviceType
_GET_DEVICE, _SLOTS = 2, 32  # its place among a guard's functions, of which there are fewer
_local = threading.local()
_kept: list[Any] = []  # what torch's libraries have pointers to


def current() -> int:
    return getattr(_local, "index", 0)


def index_of(device: Any = None) -> int:
    """What torch takes for a device: an index, its name, itself; without an index the thread's
    current one is meant."""
    index: int | None = device if isinstance(device, int) else None
    if device is not None and index is None:
        named = torch.device(device)
        if named.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {named}")
        index = named.index
    index = current() if index is None else index
    if not 0 <= index < len(machine.gpus):
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device})")
    return index


def gpu_of(device: Any = None) -> Gpu:
    return machine.gpus[index_of(device)]


def set_current(device: Any) -> None:
    """torch.cuda.set_device"""
    if not _is_none(device):
        _local.index = index_of(device)


class inside:  # noqa: N801  torch's own name for it is device
    """torch.cuda.device"""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if _is_none(device) else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current()
        set_current(self.idx)

    def __exit__(self, *_: Any) -> None:
        set_current(self.prev_idx)


def _is_none(device: Any) -> bool:
    return device is None or (isinstance(device, int) and device < 0)


def install_guard() -> None:
    """A build of torch for the CPU has nothing that makes a CUDA device the current one, and asks
    for it whenever a tensor is indexed. It is given what does that for the meta device, nothing:
    tensors say here where they are. What it says of the current device, for one that has no index,
    comes from here; c10/core/impl/DeviceGuardImplInterface.h has the order of its functions."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    symbol = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(library, symbol)
    table = ctypes.c_void_p.from_address(guards[_META] or 0).value or 0
    ours = (ctypes.c_void_p * _SLOTS).from_buffer_copy(
        ctypes.string_at(table, _SLOTS * ctypes.sizeof(ctypes.c_void_p))
    )
    # a device is its type in the lower byte and its index in the upper one
    get = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(lambda _: _CUDA | current() << 8)
    ours[_GET_DEVICE] = ctypes.cast(get, ctypes.c_void_p).value
    guard = ctypes.c_void_p(ctypes.addressof(ours))
    guards[_CUDA] = ctypes.addressof(guard)
    _kept.extend((ours, guard, get))
