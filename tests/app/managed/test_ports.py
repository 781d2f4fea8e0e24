"""Ports beside a managed server's own: forwarded KV events, and traces."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.clients.target import ServerType
from app.managed.command import command_words, engine_words, free_port
from app.managed.launch import Launch, Place
from app.managed.ports import KV_EVENTS, RANKS, kv_forwards, num_served, traces_port

AFAR = Launch(place=Place.SSH, host="gpu", interpreter="python", model="m")
ENDPOINT = "--otlp-traces-endpoint=http://127.0.0.1:{}/v1/traces"


def events(endpoint: str = "", ranks: str = "1", is_on: bool = True) -> dict[str, str]:
    given = {"endpoint": endpoint} if endpoint else {}
    return {KV_EVENTS: json.dumps({"enable_kv_cache_events": is_on, **given}), RANKS: ranks}


@pytest.mark.parametrize("settings, wanted", [
    ({}, []),
    (events("tcp://*:6000"), [("tcp://*:6000", 8001)]),
    (events("tcp://*:6000", "2"), [("tcp://*:6000", 8001), ("tcp://*:6001", 8002)]),
    (events(), [("tcp://*:5557", 8001)]),
    (events("ipc:///run/kv"), [("ipc:///run/kv", 8001)]),
    (events("tcp://*:6000", is_on=False), []),
    (events("inproc://kv"), []), (events("tcp://*:0"), []),
    (events("tcp://collector:6000"), []), (events("tcp://127.0.0.1:6000"), []),
    (events("tcp://*:6000", "many"), []),
    ({KV_EVENTS: "[1]"}, []), ({KV_EVENTS: "{"}, []),
])  # fmt: skip
def test_where_kv_events_are_forwarded_to(
    settings: dict[str, str], wanted: list[tuple[str, int]]
) -> None:
    launch = replace(AFAR, settings=settings)
    assert list(kv_forwards(launch, 8000)) == wanted
    assert num_served(launch) == 1 + len(wanted)
    assert kv_forwards(replace(launch, place=Place.HERE), 8000) == ()  # it is here already


def test_ssh_forwards_events_to_the_window_and_traces_from_it() -> None:
    launch = replace(AFAR, traces=True, settings=events("tcp://*:6000", "2"))
    words = command_words(launch, 8000, "name")
    there = [words[place + 1] for place, word in enumerate(words) if word == "-L"]
    assert there[0].startswith("127.0.0.1:8000:127.0.0.1:")
    assert there[1:] == ["127.0.0.1:8001:127.0.0.1:6000", "127.0.0.1:8002:127.0.0.1:6001"]
    back = words[words.index("-R") + 1].split(":")
    assert back[2:] == ["127.0.0.1", "8003"] and traces_port(launch, 8000) == 8003
    assert ENDPOINT.format(back[1]) in words[-1]
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in words[-1]
    socket_words = command_words(replace(AFAR, settings=events("ipc:///run/kv")), 8000, "name")
    assert "127.0.0.1:8001:/run/kv" in socket_words


def test_a_container_publishes_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launch = replace(AFAR, place=Place.CONTAINER, image="vllm", settings=events("tcp://*:6000"))
    assert "127.0.0.1:8001:6000" in command_words(launch, 8000, "name")


@pytest.mark.parametrize("tool, gpus", [
    ("docker", ["--gpus", "all"]),
    ("podman", ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]),
])  # fmt: skip
def test_a_container_gets_the_gpus_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, gpus: list[str]
) -> None:
    (tmp_path / tool).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launch = replace(AFAR, place=Place.CONTAINER, image="vllm")
    without = command_words(launch, 8000, "name")
    (tmp_path / "nvidia-smi").touch(0o755)
    words = command_words(launch, 8000, "name")
    begin = words.index(gpus[0], words.index("--rm"))
    assert words[begin : begin + len(gpus)] == gpus
    assert not set(gpus[:2]) & set(without[without.index("--rm") :])


def test_traces_are_for_a_vllm_that_can_reach_the_window() -> None:
    here = replace(AFAR, place=Place.HERE, traces=True)
    assert ENDPOINT.format(8001) in engine_words(here, 8000)
    own = replace(here, settings={"--otlp-traces-endpoint": "http://collector"})
    image, other = replace(here, place=Place.CONTAINER), replace(here, kind=ServerType.SGLANG)
    for launch in (own, image, other, replace(here, traces=False)):
        assert not launch.is_traced and not launch.variables and traces_port(launch, 8000) == 0
    assert (
        replace(here, environment={"OTEL_BSP_SCHEDULE_DELAY": "9"}).variables[
            "OTEL_BSP_SCHEDULE_DELAY"
        ]
        == "9"
    )


def test_ports_are_free_together() -> None:
    port = free_port(4)
    for each in range(port, port + 4):
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", each))
