"""What the driver tells of GPUs, and the thread that asks it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from engine.hardware.nvml import (
    Driver,
    GpuWatch,
    driver_version,
    figures_of,
    gpu_names,
    told_now,
    visible,
)
from engine.snapshot import GpuFigures, GpuProcess
from tests.engine.fake_nvml import GIB, NVMLError, fake_nvml, is_watched

WAIT_S = 30.0


def install(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> Any:
    nvml = fake_nvml(**replaced)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def raises(*arguments: object) -> NoReturn:
    raise NVMLError


def test_figures_are_in_plain_units(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch)
    driver = Driver()
    first, second = driver.figures()
    assert first == GpuFigures(
        name="A card", uuid="GPU-0", total=8 * GIB, used=3 * GIB, own=GIB,
        processes=(GpuProcess(f"process {2**22 + 1}", 2**22 + 1, GIB // 2),),
        utilization=0.75, memory_utilization=0.4, power_w=412.0, power_limit_w=700.0,
        temperature_c=61, clock_mhz=1980, max_clock_mhz=1980, memory_clock_mhz=3201,
    )  # fmt: skip
    assert second.uuid == "GPU-1" and first.others == 2 * GIB
    driver.close()
    assert nvml.calls == ["init", "shutdown"]


def test_what_a_gpu_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch, nvmlDeviceGetUtilizationRates=raises, nvmlDeviceGetPowerUsage=raises,
        nvmlDeviceGetTemperature=raises, nvmlDeviceGetGraphicsRunningProcesses=raises,
    )  # fmt: skip
    driver = Driver()
    one = driver.figures()[0]
    driver.close()
    assert (one.utilization, one.power_w, one.temperature_c, one.own) == (None,) * 4
    assert one.processes == () and one.others == one.used and one.clock_mhz == 1980


def test_a_gpu_that_may_not_be_seen_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers, and of GPUs that are divided (MIG)."""

    def refused(device: int) -> Any:
        return raises() if device == 0 else SimpleNamespace(used=3 * GIB, total=8 * GIB)

    install(monkeypatch, nvmlDeviceGetMemoryInfo=refused)
    assert [gpu.uuid for gpu in told_now()] == ["GPU-1"]
    assert gpu_names() == ("A card", "A card")
    install(monkeypatch, nvmlDeviceGetHandleByIndex=lambda index: raises() if index else index)
    assert [gpu.uuid for gpu in told_now()] == ["GPU-0"] and gpu_names() == ("A card",)
    install(monkeypatch, nvmlDeviceGetMemoryInfo=raises)
    assert told_now() == ()
    nvml = install(monkeypatch, nvmlDeviceGetMemoryInfo=lambda device: raises_lost())
    assert told_now() == () and nvml.calls == ["init", "shutdown"]


def raises_lost() -> NoReturn:
    raise NVMLError(15)


def test_a_part_of_a_gpu_is_not_taken_for_the_whole() -> None:
    one, other = (GpuFigures(n, 80 * GIB, 0, uuid=f"GPU-{n}") for n in "ab")
    assert figures_of("GPU-b", 79 * GIB, (one, other)) is other
    assert figures_of("GPU-b", 10 * GIB, (one, other)) is None
    assert figures_of("GPU-x", 79 * GIB, (one, other)) is None
    assert figures_of("", 79 * GIB, (one,)) is one
    assert figures_of("MIG-1", 10 * GIB, (one,)) is None


def divided(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The second GPU has two parts in three places, and tells nothing of its own memory."""

    def memory(device: int) -> Any:
        return raises() if device == 1 else SimpleNamespace(used=GIB, total=(8 + device) * GIB)

    def part(device: int, index: int) -> int:
        return raises() if index == 1 else 10 * device + index

    def uuid(device: int) -> str:
        return f"MIG-{device}abc" if device >= 10 else f"GPU-{device}abc"

    return install(
        monkeypatch, nvmlDeviceGetMemoryInfo=memory, nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetUUID=uuid, nvmlDeviceGetMigMode=lambda device: [device, device],
        nvmlDeviceGetMaxMigDeviceCount=lambda device: 3,
        nvmlDeviceGetName=lambda device: f"part {device}" if device >= 10 else "A card",
        nvmlDeviceGetUtilizationRates=lambda device: raises(),
    )  # fmt: skip


def test_the_parts_of_a_divided_gpu_follow_the_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    divided(monkeypatch)
    told = told_now()
    assert [(gpu.name, gpu.uuid, gpu.part_of) for gpu in told] == [
        ("A card", "GPU-0abc", ""), ("part 10", "MIG-10abc", "GPU-1abc"),
        ("part 12", "MIG-12abc", "GPU-1abc"),
    ]  # fmt: skip
    assert (told[1].total, told[1].own, told[1].power_w) == (18 * GIB, GIB, None)
    assert gpu_names() == ("A card", "A card")
    # CUDA tells a part's UUID without saying what it is of
    assert figures_of("GPU-12abc", 20 * GIB, told) is told[2]
    assert figures_of("GPU-0abc", 8 * GIB, told) is told[0]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [(None, ["A card"]), ("MIG-12abc", ["part 12"]), ("MIG-10", ["part 10"]), ("0", ["A card"]),
     ("1", []), ("MIG-1", []), ("MIG-99,0", [])],
)  # fmt: skip
def test_cuda_may_show_a_part(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, names: list[str]
) -> None:
    divided(monkeypatch)
    if wanted is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    assert [gpu.name for gpu in visible(told_now())] == names


def test_names_and_version_without_a_driver_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_names() == () and driver_version() == ""
    nvml = install(monkeypatch)
    assert gpu_names() == ("A card", "A card") and driver_version() == "999.1"
    assert nvml.calls == ["init", "shutdown"] * 2


@pytest.mark.parametrize(
    ("wanted", "names"),
    [(None, "abc"), ("", ""), ("2,0", "ca"), ("GPU-b1", "b"), ("1,9,0", "b"), ("GPU-", ""),
     ("-1", ""), (" 1 , GPU-c", "bc")],
)  # fmt: skip
def test_cuda_may_show_fewer(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, names: str
) -> None:
    gpus = [GpuFigures(name, 8 * GIB, 0, uuid=f"GPU-{name}123") for name in "abc"]
    if wanted is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    assert "".join(gpu.name for gpu in visible(gpus)) == names


def test_the_watch_asks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch)
    asked = threading.Semaphore(0)
    seen: list[tuple[float, tuple[GpuFigures, ...]]] = []
    watch = GpuWatch(lambda *told: (seen.append(told), asked.release()), interval_s=0.001)
    watch.start()
    for _ in range(3):
        assert asked.acquire(timeout=WAIT_S)
    watch.stop()
    assert not is_watched() and nvml.calls == ["init", "shutdown"]
    times = [time for time, _ in seen]
    assert times == sorted(times) and watch.latest == seen[-1][1] and len(watch.latest) == 2


def test_the_watch_ends_when_the_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def memory(device: int) -> NoReturn:
        nonlocal asked
        asked += 1
        raise NVMLError(15)

    nvml = install(monkeypatch, nvmlDeviceGetMemoryInfo=memory)
    watch = GpuWatch(interval_s=0.001)
    watch.start()
    assert watch._thread is not None
    watch._thread.join(WAIT_S)
    assert not is_watched() and watch.latest == () and asked == 1
    assert nvml.calls == ["init", "shutdown"]
    watch.stop()


def test_the_watch_is_silent_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = GpuWatch()
    watch.start()
    watch.stop()
    assert watch.latest == () and not is_watched()
