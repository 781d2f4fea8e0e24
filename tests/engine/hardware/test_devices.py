"""Where a model can run, and why not there."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch

from engine import EngineConfig
from engine.config import SETTINGS
from engine.errors import ConfigError
from engine.hardware import devices
from engine.hardware.devices import Gpu, resolve_device

HOPPER = Gpu(0, "NVIDIA H200", 141 * 2**30, (9, 0))
MAXWELL = Gpu(1, "GeForce GTX 980", 4 * 2**30, (5, 2), problem="it is too old.")


ask = devices.gpus


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    ask.cache_clear()
    devices._tried.cache_clear()
    yield
    ask.cache_clear()
    devices._tried.cache_clear()


def with_gpus(monkeypatch: pytest.MonkeyPatch, *found: Gpu) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: found)


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_devices_are_named_as_in_torch(value: str) -> None:
    assert EngineConfig(device=value).device == value


@pytest.mark.parametrize("value", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", "", 0, None])
def test_other_names_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="auto, cpu, cuda"):
        SETTINGS["device"].check(value)


def test_auto_is_the_first_gpu_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch)
    assert resolve_device("auto") == "cpu"
    with_gpus(monkeypatch, MAXWELL)
    assert resolve_device("auto") == "cpu"
    with_gpus(monkeypatch, Gpu(0, "old", 1, (5, 0), problem="too old"), Gpu(1, "new", 1, (9, 0)))
    assert resolve_device("auto") == "cuda:1"
    assert resolve_device("cpu") == "cpu"


def test_a_gpu_that_was_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, HOPPER, MAXWELL)
    assert resolve_device("cuda") == resolve_device("cuda:0") == "cuda:0"
    with pytest.raises(ConfigError, match=r"GTX 980 \(cuda:1\) "):
        resolve_device("cuda:1")
    with pytest.raises(ConfigError, match=r"cuda:2.*cuda:0 \(NVIDIA H200\)"):
        resolve_device("cuda:2")


def test_without_a_gpu_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match="CUDA") as caught:
        resolve_device("cuda:0")
    assert "cpu" in caught.value.remedy


def test_a_driver_that_does_not_match_is_told_of_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nx")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    assert devices.why_none() == "The NVIDIA driver on your system is too old (found version 11040)"
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "CUDA_VISIBLE_DEVICES" in devices.why_none()


def test_every_gpu_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is too old, one has no code in this build (its test computation fails, as here every
    computation on a GPU does)."""
    show_to_torch(monkeypatch, (7, 0), (12, 0))
    fail_with(
        monkeypatch, RuntimeError("no kernel image is available for execution on the device\nmore")
    )
    old, strange = devices.gpus()
    assert "7.0" in devices.why_not(old) and "7.5" in devices.why_not(old)
    problem = devices.why_not(strange)
    assert "no kernel image" in problem and "12.0, PyTorch" in problem and "sm_80" in problem
    assert (strange.device, strange.uuid) == ("cuda:1", "GPU-u1")
    assert devices.gpus() is devices.gpus()
    with pytest.raises(ConfigError, match="no kernel image"):
        resolve_device("cuda:1")


def test_only_a_gpu_that_is_to_be_used_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial takes memory of it until the process ends."""
    show_to_torch(monkeypatch, (9, 0), (9, 0), (9, 0))
    tried: list[str] = []

    def ones(*size: int, device: str) -> torch.Tensor:
        tried.append(device)
        return torch.zeros(8) + 1

    monkeypatch.setattr(torch, "ones", ones)
    assert len(devices.gpus()) == 3 and not tried
    assert resolve_device("cuda:1") == "cuda:1" and resolve_device("auto") == "cuda:0"
    assert tried == ["cuda:1", "cuda:0"]


def show_to_torch(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties",
        lambda index: types.SimpleNamespace(
            name=f"card {index}", total_memory=2**33, major=capabilities[index][0],
            minor=capabilities[index][1], uuid=f"u{index}",
        ),
    )  # fmt: skip


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Every computation on a GPU."""

    def fails(*args: object, device: str = "") -> None:
        raise error

    monkeypatch.setattr(torch, "ones", fails)


def test_a_gpu_that_is_full_now_is_not_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may end; what is free is asked when a model is loaded."""
    show_to_torch(monkeypatch, (9, 0))
    fail_with(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB."))
    assert devices.why_not(devices.gpus()[0]) == ""
    assert resolve_device("auto") == "cuda:0"
