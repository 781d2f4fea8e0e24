"""Memory in use on NVIDIA GPUs, asked of the driver (NVML) and never of torch."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.tasks import run_task

INTERVAL_MS = 1000


class GpuMonitor(QObject):
    """`used` once a second: time (`time.perf_counter`), bytes in use on all GPUs together.

    Silent where there is no NVIDIA driver.
    """

    used = Signal(float, object)  # object: a C++ int has 32 bits

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
            used = sum(int(self._nvml.nvmlDeviceGetMemoryInfo(d).used) for d in self._devices)
        except self._nvml.NVMLError:
            self._timer.stop()  # the driver was unloaded or reset
            return
        self.used.emit(time.perf_counter(), used)


def _open() -> tuple[Any, list[Any]]:
    """The NVML module and its devices. Raises where there is no driver."""
    import pynvml

    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
