"""Which device a module is on, and what the setting gpu_layers means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.hardware.device_map import CHOICES, DeviceMap, check_gpu_layers, host_layers_of

DIVIDED = DeviceMap("cuda:1", 2, "model.layers", ("model.embed", "model.rotary"))


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("model.embed", "cpu"), ("model.embed.weight", "cpu"), ("model.rotary.inv_freq", "cpu"),
        ("model.layers.0", "cpu"), ("model.layers.1.mlp.0.weight", "cpu"),
        ("model.layers.2", "cuda:1"), ("model.layers.10.mlp.1.weight", "cuda:1"),
        ("model.layers.12.norm", "cuda:1"),
        ("model.layers", "cuda:1"), ("model.layers.extra", "cuda:1"),
        ("model.embed_norm.weight", "cuda:1"), ("model.layers_norm.0.weight", "cuda:1"),
        ("model.norm.weight", "cuda:1"), ("lm_head.weight", "cuda:1"), ("", "cuda:1"),
    ],
)  # fmt: skip
def test_of_paths(path: str, device: str) -> None:
    assert DIVIDED.of(path) == device
    assert DeviceMap("cuda:1").of(path) == "cuda:1"
    assert DeviceMap("cpu").of(path) == "cpu"


def test_devices_in_the_order_of_a_step() -> None:
    assert DIVIDED.devices == ("cpu", "cuda:1")
    assert DeviceMap("cuda:0").devices == ("cuda:0",)


@given(count=st.integers(0, 99), host_layers=st.integers(1, 99))
def test_the_first_layers_are_the_cpu_s(count: int, host_layers: int) -> None:
    divided = DeviceMap("cuda:0", host_layers, "h")
    assert (divided.of(f"h.{count}.weight") == "cpu") == (count < host_layers)


@given(wanted=st.integers(1, 200), layers=st.integers(1, 99))
def test_a_number_is_of_the_gpu_s_layers(wanted: int, layers: int) -> None:
    found = host_layers_of("cuda:0", str(wanted), layers)
    assert found is not None and 0 <= found < layers, "at least one is on the GPU"
    assert layers - found == min(wanted, layers)


def test_the_cpu_has_all_layers_and_room_decides_for_auto() -> None:
    for gpu_layers in (*CHOICES, "3"):
        assert host_layers_of("cpu", gpu_layers, 8) == 0
    assert host_layers_of("cuda:0", "all", 8) == 0
    assert host_layers_of("cuda:0", "auto", 8) is None


@pytest.mark.parametrize(
    "value", ["0", "-1", "+1", "1.5", " 1", "", "ALL", "two", "²", "٣", 3, None]
)
def test_what_is_no_number_of_layers_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="gpu_layers"):
        check_gpu_layers(value)
    with pytest.raises(ConfigError):
        EngineConfig().replace(gpu_layers=value)


@pytest.mark.parametrize("value", ["auto", "all", "1", "32", "007"])
def test_what_is_accepted(value: str) -> None:
    assert EngineConfig().replace(gpu_layers=value).gpu_layers == value
    assert SETTINGS["gpu_layers"].default == "auto"
