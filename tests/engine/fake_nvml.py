"""A driver with two GPUs that are not there."""

from __future__ import annotations

import os
import threading
import types
from typing import Any

GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int = 3) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def is_watched() -> bool:
    """Whether a thread polls the driver."""
    return any(thread.name == "gpu-monitor" for thread in threading.enumerate())


def fake_nvml(**replaced: Any) -> types.ModuleType:
    """A module in place of pynvml: 8 GiB each, 3 in use, 1 by this process and half a one by
    another. `calls` has what was opened and closed. `replaced`: functions in place of ours."""
    nvml: Any = types.ModuleType("pynvml")
    calls: list[str] = []
    other = types.SimpleNamespace(pid=2**22 + 1, usedGpuMemory=GIB // 2)
    own = types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=GIB)
    functions: dict[str, Any] = {
        "nvmlInit": lambda: calls.append("init"),
        "nvmlShutdown": lambda: calls.append("shutdown"),
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "999.1",
        "nvmlDeviceGetMemoryInfo": lambda device: types.SimpleNamespace(
            used=3 * GIB, total=8 * GIB
        ),
        "nvmlDeviceGetName": lambda device: "A card",
        "nvmlDeviceGetUUID": lambda device: f"GPU-{device}",
        "nvmlDeviceGetComputeRunningProcesses": lambda device: [own],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda device: [own, other],
        "nvmlDeviceGetUtilizationRates": lambda device: types.SimpleNamespace(gpu=75, memory=40),
        "nvmlDeviceGetPowerUsage": lambda device: 412_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda device: 700_000,
        "nvmlDeviceGetTemperature": lambda device, sensor: 61,
        "nvmlDeviceGetClockInfo": lambda device, clock: 1980 if clock == 1 else 3201,
        "nvmlDeviceGetMaxClockInfo": lambda device, clock: 1980,
        "nvmlDeviceGetMigMode": lambda device: [0, 0],
        **replaced,
    }
    for name, function in functions.items():
        setattr(nvml, name, function)
    nvml.NVMLError, nvml.calls = NVMLError, calls
    nvml.NVML_TEMPERATURE_GPU, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM = 0, 1, 2
    nvml.NVML_DEVICE_MIG_ENABLE = 1
    nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED = 15, 1
    return nvml
