"""The machine: cores, memory, dtypes, GPUs.

Limits of a container (cgroup version 1 and 2) and of the process' CPU affinity count as the
machine's own.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from engine.hardware.devices import CPU, Gpu, gpu_of, has_fast_bf16, is_cuda
from engine.hardware.idle_cores import allowed_cores
from engine.hardware.nvml import figures_of, gpu_names, told_now

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Facts about this machine. Sizes are bytes. Cores: those that this process may use."""

    cpu: str
    physical_cores: int
    logical_cores: int
    default_threads: int
    total_memory: int
    available_memory: int
    fast_bf16: bool
    platform: str
    gpus: tuple[str, ...] = ()


def machine_info() -> MachineInfo:
    """Facts about this machine; `available_memory` is measured at each call."""
    available, total = free_memory()
    return MachineInfo(
        cpu=_cpu_name(),
        physical_cores=_physical_cores(),
        logical_cores=len(allowed_cores()),
        default_threads=default_threads(),
        total_memory=total,
        available_memory=available,
        fast_bf16=has_fast_16bit("bfloat16"),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=gpu_names(),
    )


SMALL_MODEL = 16_000_000
"""Parameters of which 64 MiB of float32 stay in a processor's cache: 16 bits save no time there,
and converting costs some (a model of 4.5 million: 4.7 ms a step in float32, 6.4 in bfloat16)."""


def default_dtype(checkpoint_dtype: str, num_parameters: int, device: str = CPU) -> str:
    """The dtype of "auto": bfloat16 where the device computes it fast, else float32 on a CPU and
    float16 on a GPU. float32 checkpoints and small models use float32."""
    if checkpoint_dtype == "float32" or num_parameters <= SMALL_MODEL:
        return "float32"
    if is_cuda(device):
        return "bfloat16" if has_fast_bf16(device) else "float16"
    return "bfloat16" if has_fast_16bit("bfloat16") else "float32"


def machine_name(device: str = CPU) -> str:
    """Name of the device: processor and cores (imports no torch), or the GPU."""
    if is_cuda(device):
        return gpu_of(device).name
    return f"{_cpu_name()}, {len(allowed_cores())} logical cores"


def default_threads() -> int:
    """Threads for matmuls: one per physical core that affinity and quota allow."""
    return max(1, min(_physical_cores(), math.floor(_cpu_quota())))


def free_memory(device: str = CPU) -> tuple[int, int]:
    """(free, total) bytes of the device's memory."""
    if is_cuda(device):
        return _free_gpu_memory(gpu_of(device))
    return free_ram()


def free_ram() -> tuple[int, int]:
    """(free, total) bytes within the cgroup's limit."""
    memory = psutil.virtual_memory()
    available, total = int(memory.available), int(memory.total)
    for limit, used in _cgroup_memory():
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return min(available, total), total


def process_memory() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def gpu_memory_by_torch(device: str) -> tuple[int, int, int]:
    """(bytes that torch holds on a GPU for this process, without the CUDA context; bytes free;
    bytes in all), without the driver's help: for a process that computes on it already."""
    import torch

    index = gpu_of(device).index
    return torch.cuda.memory_reserved(index), *torch.cuda.mem_get_info(index)


def _free_gpu_memory(gpu: Gpu) -> tuple[int, int]:
    """What torch holds and does not use counts as free: it is given out again first. Asked of the
    driver, which makes no CUDA context for it, and of CUDA where there is no NVML."""
    import torch

    unused = 0
    if torch.cuda.is_initialized():
        unused = torch.cuda.memory_reserved(gpu.index) - torch.cuda.memory_allocated(gpu.index)
    told = figures_of(gpu.uuid, gpu.total_memory, told_now())
    if told is not None:
        return min(told.total, told.total - told.used + unused), told.total
    free, total = torch.cuda.mem_get_info(gpu.index)
    return min(total, free + unused), total


def _cgroup_memory() -> Iterator[tuple[int, int]]:
    """(limit, used without reclaimable file pages) of each cgroup above this process."""
    for folder in _cgroup_folders("memory"):
        for limit_name, used_name, file_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                words = _words(folder / "memory.stat")
                cached = int(words[words.index(file_key) + 1]) if file_key in words else 0
                yield limit, max(0, used - cached)


def _cpu_quota() -> float:
    """CPU quota in cores of the strictest cgroup; 2**30 for no limit."""
    quotas = [float(2**30)]
    for folder in _cgroup_folders("cpu"):
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas)


def _cgroup_folders(controller: str) -> list[Path]:
    """Folders of this process' cgroup and all above it. Lines of /proc/self/cgroup:
    `0::/path` (version 2) or `4:cpu,cpuacct:/path` (version 1)."""
    folders: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders  # not Linux
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root = _CGROUP
        elif controller in controllers.split(","):
            root = _CGROUP / controller
        else:
            continue
        relative = Path(path.lstrip("/"))
        # inside a container the path may not be mounted: the root still counts
        folders += [root / relative, *(root / p for p in relative.parents), root]
    return [f for f in dict.fromkeys(folders) if f.is_dir()]


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _number(file: Path) -> int | None:
    words = _words(file)
    try:
        return int(words[0]) if words else None
    except ValueError:  # "max": no limit
        return None


@cache
def _topology() -> dict[int, list[int | None]]:
    """Logical CPU -> [socket, core], on Linux; empty elsewhere."""
    found = {
        int(folder.name[3:]): [
            _number(folder / "topology" / name) for name in ("physical_package_id", "core_id")
        ]
        for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*")
    }
    return {cpu: place for cpu, place in found.items() if None not in place}


def _physical_cores() -> int:
    allowed, topology = allowed_cores(), _topology()
    if topology:
        return max(1, len({tuple(topology[cpu]) for cpu in allowed if cpu in topology}))
    return max(1, min(psutil.cpu_count(logical=False) or len(allowed), len(allowed)))


@cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def has_fast_16bit(dtype: str) -> bool:
    """Whether this CPU has instructions for matmuls in "bfloat16" or "float16" that torch uses."""
    import torch

    name = "_is_mkldnn_bf16_supported" if dtype == "bfloat16" else "_is_mkldnn_fp16_supported"
    supported = getattr(torch.ops.mkldnn, name, None)
    return bool(supported and supported())
