"""Memory in use on NVIDIA GPUs, asked of the driver (NVML) and never of torch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.tasks import run_task

INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU, in bytes. `own`: what this process holds; None where the driver does not tell."""

    name: str
    total: int
    used: int
    own: int | None

    @property
    def others(self) -> int:
        """What other programs hold, and the driver itself."""
        return max(0, self.used - (self.own or 0))


class GpuMonitor(QObject):
    """`used` once a second: time (`time.perf_counter`), bytes in use on all GPUs together; and
    `devices`: tuple[GpuMemory, ...].

    Silent where there is no NVIDIA driver.
    """

    used = Signal(float, object)  # object: a C++ int has 32 bits
    devices = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._timer = QTimer(self)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._ask)

    def start(self) -> None:
        run_task(self, _open, self._opened, lambda error: None)

    def stop(self) -> None:
        self._timer.stop()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._devices = None, []

    def _opened(self, found: tuple[Any, list[Any]]) -> None:
        self._nvml, self._devices = found
        if self._devices:
            self._timer.start()
            self._ask()

    def _ask(self) -> None:
        try:
            found = tuple(_memory(self._nvml, device) for device in self._devices)
        except self._nvml.NVMLError:
            self._timer.stop()  # the driver was unloaded or reset
            return
        self.used.emit(time.perf_counter(), sum(gpu.used for gpu in found))
        self.devices.emit(found)


def _open() -> tuple[Any, list[Any]]:
    """The NVML module and its devices. Raises where there is no driver."""
    import pynvml

    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]


def _memory(nvml: Any, device: Any) -> GpuMemory:
    """Raises NVMLError where the driver is gone."""
    memory, name = nvml.nvmlDeviceGetMemoryInfo(device), nvml.nvmlDeviceGetName(device)
    title = name.decode() if isinstance(name, bytes) else str(name)
    return GpuMemory(title, int(memory.total), int(memory.used), _own(nvml, device))


def _own(nvml: Any, device: Any) -> int | None:
    """Containers and Windows hide who holds what: then None."""
    try:
        processes = [
            *nvml.nvmlDeviceGetComputeRunningProcesses(device),
            *nvml.nvmlDeviceGetGraphicsRunningProcesses(device),
        ]
    except nvml.NVMLError:
        return None
    held = {process.pid: process.usedGpuMemory for process in processes}
    if any(size is None for size in held.values()):
        return None
    return int(held.get(os.getpid(), 0))
