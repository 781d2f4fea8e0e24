"""Copies between host and device that do not block the host.

Uploads go through pinned memory, which torch reuses only after the copy is done. Results are copied
to pinned memory behind the kernels that compute them; only `Download.read` waits. On the CPU all of
it is the same tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch.batch import Batch

CPU = torch.device("cpu")


def reads_freely(device: torch.device) -> bool:
    """Whether reading a tensor on the host does not wait for a device."""
    return device.type == "cpu"


def upload(
    values: Sequence[Any] | NDArray[Any] | Tensor,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A tensor of `values`, which are on the host, on `device`."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type == "cpu":
        return tensor
    host = host_buffer(tensor.shape, tensor.dtype, device).copy_(tensor)
    return host.to(device, non_blocking=True)


def upload_places(places: Sequence[int], device: torch.device) -> Tensor:
    """int64 indices on a device."""
    return upload(places, device, torch.int64)


def host_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Pinned host memory for non-blocking copies to and from `device`."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class Download:
    """Tensors of one device that are copied to the host as soon as they are computed."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._host = list(tensors)
        self._done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._host = [
                host_buffer(one.shape, one.dtype, device).copy_(one, non_blocking=True)
                for one in tensors
            ]
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(device))

    def read(self) -> list[list[Any]]:
        """The numbers, tensor by tensor; waits until they are there."""
        if self._done is not None:
            self._done.synchronize()
        return [tensor.tolist() for tensor in self._host]


class DeviceTimer:
    """Times the work launched between two calls of `mark`, with device events; measures nothing on
    the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)

    def seconds(self) -> float | None:
        """From the first mark to the last, once the device has passed it; None on the CPU."""
        if len(self._marks) < 2:
            return None
        return self._marks[0].elapsed_time(self._marks[-1]) / 1000


_ALIGNMENT = 16
"""Numbers (128 bytes): kernels read aligned memory faster, and are compiled for it."""


_TENSORS = ("input_ids", "positions", "slot_mapping", "logits_indices")  # of a Batch


class Staging:
    """A device buffer for the inputs of a batch. `capacity`: initial number of elements; it grows,
    and its address changes then. On the CPU a batch is used as it is."""

    def __init__(self, device: torch.device, capacity: int = 0) -> None:
        self._device = device
        self._buffer = torch.zeros(capacity, dtype=torch.int64, device=device)

    def stage(self, batch: Batch) -> Batch:
        """`batch`, whose tensors are on the host, on the device."""
        if reads_freely(self._device):
            return batch
        return self.copy(batch)

    def copy(self, batch: Batch) -> Batch:
        """`stage`, into the buffer on the CPU too."""
        parts: list[Tensor] = [getattr(batch, name) for name in _TENSORS]
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + aligned(len(part)))
        host = host_buffer([starts[-1]], torch.int64, self._device)
        for part, start in zip(parts, starts, strict=False):
            host[start : start + len(part)] = part
        if starts[-1] > len(self._buffer):
            self._buffer = torch.zeros(2 * starts[-1], dtype=torch.int64, device=self._device)
        self._buffer[: starts[-1]].copy_(host, non_blocking=True)
        views = {
            name: self._buffer[start : start + len(part)]
            for name, part, start in zip(_TENSORS, parts, starts, strict=False)
        }
        return dataclasses.replace(batch, **views)  # type: ignore[arg-type]


def aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def capacity_for(num_rows: int) -> int:
    """Of a buffer that holds a step of `num_rows` requests that decode."""
    return 4 * aligned(num_rows)
