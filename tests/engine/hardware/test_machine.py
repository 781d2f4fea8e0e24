"""Limits of a container and of the process count as the machine's own."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from engine.hardware import devices, machine
from engine.hardware.devices import Gpu
from engine.hardware.idle_cores import FreeCores, allowed_cores
from tests.engine.fake_nvml import NVMLError, fake_nvml

GIB = 2**30


def test_what_is_reported_is_consistent() -> None:
    info = machine.machine_info()
    assert 1 <= info.default_threads <= info.physical_cores <= info.logical_cores
    assert 0 < info.available_memory <= info.total_memory
    assert info.cpu and info.platform
    assert machine.process_memory() > 2**20


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cgroup" / "app"
    folder.mkdir(parents=True)
    monkeypatch.setattr(machine, "_cgroup_folders", lambda controller: [folder, folder.parent])
    return folder


@pytest.mark.parametrize(
    ("total", "memory_info", "wanted"),
    [
        (8 * GIB, None, (6 * GIB, 8 * GIB)),  # the driver's, and what torch holds and does not use
        (8 * GIB, "refused", (3 * GIB, 4 * GIB)),
        (4 * GIB, None, (3 * GIB, 4 * GIB)),  # a part of the GPU
    ],
)
def test_memory_of_a_gpu(
    total: int, memory_info: str | None, wanted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: object) -> None:
        raise NVMLError

    replaced = {"nvmlDeviceGetMemoryInfo": refuse} if memory_info else {}
    nvml = fake_nvml(nvmlDeviceGetCount=lambda: 1, **replaced)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = Gpu(0, "a card", total, (9, 0), "GPU-0")
    monkeypatch.setattr(devices, "gpus", lambda: (gpu,))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2 * GIB, 4 * GIB))
    assert machine.free_memory("cuda:0") == wanted


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def test_memory_limit_of_version_2(cgroup: Path) -> None:
    _, total = machine.free_memory()
    limit = total // 2
    write(
        cgroup,
        memory__max=str(limit),
        memory__current=str(limit // 2),
        memory__stat=f"anon 1\ninactive_file {limit // 8}\n",
    )
    free, seen = machine.free_memory()
    assert seen == limit
    assert free <= limit - limit // 2 + limit // 8


def test_memory_limit_of_version_1(cgroup: Path) -> None:
    _, total = machine.free_memory()
    write(
        cgroup,
        memory__limit_in_bytes=str(total // 4),
        memory__usage_in_bytes="0",
        memory__stat="",
    )
    assert machine.free_memory()[1] == total // 4


@pytest.mark.parametrize(
    "files",
    [
        {"memory__max": "max", "memory__current": "5"},
        {"memory__limit_in_bytes": str(2**63 - 4096), "memory__usage_in_bytes": "5"},
    ],
)
def test_no_limit(files: dict[str, str], cgroup: Path) -> None:
    _, before = machine.free_memory()
    write(cgroup, **files)
    assert machine.free_memory()[1] == before


def test_the_strictest_of_nested_limits_counts(cgroup: Path) -> None:
    _, total = machine.free_memory()
    write(cgroup, memory__max=str(total // 2), memory__current="0")
    write(cgroup.parent, memory__max=str(total // 3), memory__current="0")
    assert machine.free_memory()[1] == total // 3


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu__max": "150000 100000"}, 1),
        ({"cpu__max": "50000 100000"}, 1),
        ({"cpu__cfs_quota_us": "100000", "cpu__cfs_period_us": "100000"}, 1),
        ({"cpu__max": "max 100000"}, None),
        ({"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, None),
    ],
)
def test_cpu_quota(files: dict[str, str], threads: int | None, cgroup: Path) -> None:
    unlimited = machine.default_threads()
    write(cgroup, **files)
    assert machine.default_threads() == (threads or unlimited)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_cpu_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.default_threads() == 1
        assert machine.machine_info().logical_cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_a_sandbox_that_forbids_to_ask_leaves_all_cores(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("sched_getaffinity", "nice"):
        monkeypatch.setattr(os, name, refuse, raising=False)
    assert allowed_cores() == frozenset(range(os.cpu_count() or 1))
    assert FreeCores(2)._last[1] is not None  # the use by other programs is still known


@pytest.mark.parametrize(
    ("fast", "stored", "millions", "chosen"),
    [
        (True, "bfloat16", 600, "bfloat16"),
        (True, "float16", 600, "bfloat16"),
        (True, "float32", 600, "float32"),
        (False, "bfloat16", 600, "float32"),
        (True, "bfloat16", 17, "bfloat16"),
        (True, "bfloat16", 5, "float32"),  # stays in the processor's cache
    ],
)
def test_default_dtype(
    fast: bool, stored: str, millions: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "has_fast_16bit", lambda dtype: fast)
    assert machine.default_dtype(stored, millions * 1_000_000) == chosen
