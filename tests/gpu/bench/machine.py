"""The device, the host and the versions that every figure depends on."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from engine.hardware.machine import machine_info
from tests.gpu.bench.bench import Bench, UnableError

PACKAGES = ("torch", "triton", "transformers", "safetensors", "tokenizers", "numpy")


def describe(bench: Bench) -> dict[str, Any]:
    """Raises UnableError where the device is not there."""
    host = machine_info()
    return {
        "device": _gpu(bench.device) if bench.device.type == "cuda" else {"name": host.cpu},
        "driver": _driver() if bench.device.type == "cuda" else "",
        "cuda": torch.version.cuda or "",
        "host": {
            "cpu": host.cpu, "cores": host.logical_cores, "memory": host.total_memory,
            "platform": host.platform,
        },
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }  # fmt: skip


def _gpu(device: torch.device) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise UnableError(
            "torch sees no NVIDIA GPU here. To try everything out on the CPU: --device cpu --quick"
        )
    found = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": found.name, "compute_capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count, "memory": total, "memory_free": free,
        "l2_bytes": getattr(found, "L2_cache_size", None),
    }  # fmt: skip


def _driver() -> str:
    """Version and, at this moment, clocks and power, as nvidia-smi tells them; it sets nothing."""
    fields = "driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
