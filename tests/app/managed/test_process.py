"""The life of a managed engine, with the scripted vLLM as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from app.clients.probe import probe
from app.clients.target import ServerType, Target
from app.managed.command import is_taken
from app.managed.handle import Record
from app.managed.launch import Launch
from app.managed.log_progress import Stage
from app.managed.process import ManagedProcess, State
from app.managed.supervisor import supervised
from app.paths import data_dir
from engine.errors import InferdeckError
from tests.app.managed.conftest import WAIT_S, Start, engine_of, has_ended, ready, wait_until

NAME = "inferdeck-test"


def test_it_starts_serves_and_stops(start: Start, launch: Launch) -> None:
    process = ready(start(launch))
    found = probe(Target(process.base_url), 5.0)
    assert (found.server_type, found.version) == (ServerType.VLLM, "0.32.0")
    assert found.models == ("starter",) and found.has_metrics
    engine = engine_of(process)
    process.stop()
    assert process.status.state is State.STOPPING
    assert process.wait(WAIT_S)
    assert process.status == (State.ENDED, process.status.progress, None)
    assert "INFO:     Application shutdown complete." in process.lines  # SIGINT, not SIGKILL
    assert not engine.is_running() and not is_taken(process.port)


def test_it_stops_in_order_where_the_window_ignores_interrupts(
    start: Start, launch: Launch
) -> None:
    """As in the background of a shell's script."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = ready(start(launch))
    finally:
        signal.signal(signal.SIGINT, usual)
    process.stop()
    assert process.wait(WAIT_S)
    assert "INFO:     Application shutdown complete." in process.lines


def test_progress_comes_from_its_log(launch: Launch) -> None:
    stages: list[Stage] = []

    def note() -> None:
        status = process.status
        if status.state is State.STARTING and status.progress.stage not in stages:
            stages.append(status.progress.stage)

    slow = replace(launch, environment={"SCRIPTED_STEP": "0.01"})
    process = ManagedProcess(slow, note)
    ready(process)
    process.stop()
    assert process.wait(WAIT_S)
    assert stages == [Stage.LOADING, Stage.COMPILING, Stage.SERVING]


def test_a_killed_engine_is_noticed_at_once(start: Start, launch: Launch) -> None:
    process = ready(start(launch))
    engine_of(process).kill()
    began = time.monotonic()
    wait_until(lambda: process.status.state is State.ENDED)
    assert time.monotonic() - began < 5.0
    error = process.status.error
    assert error is not None and "SIGKILL" in error.cause and error.kind == "EngineEnded"


def test_it_restarts_on_another_port(start: Start, launch: Launch) -> None:
    first = ready(start(launch))
    engine_of(first).kill()
    assert first.wait(WAIT_S)
    second = ready(start(launch))
    assert probe(Target(second.base_url), 5.0).models == ("starter",)


def test_it_can_be_stopped_while_it_starts(start: Start, launch: Launch) -> None:
    process = start(replace(launch, environment={"SCRIPTED_STEP": "30"}))
    wait_until(lambda: bool(process.lines))
    process.stop()
    assert process.wait(WAIT_S) and process.status.error is None


def test_its_last_words_are_the_reason(start: Start, launch: Launch) -> None:
    process = start(replace(launch, environment={"SCRIPTED_FAIL": "unknown_model"}))
    assert process.wait(WAIT_S)
    error = process.status.error
    assert error is not None and "does not support this model" in error.cause


def test_a_grandchild_ends_with_the_engine(start: Start, tmp_path: Path) -> None:
    """Workers of a killed engine keep the memory of GPUs otherwise."""
    file = tmp_path / "pid"
    command = f"sh -c 'sleep 600 & echo $! > {file}; echo {{port}}; wait'"
    process = start(Launch(kind=ServerType.OPENAI, command=command))
    wait_until(lambda: file.exists() and bool(file.read_text().strip()))
    worker = psutil.Process(int(file.read_text()))
    shell = worker.parent()
    assert shell is not None
    shell.kill()
    assert process.wait(WAIT_S)
    wait_until(lambda: has_ended(worker))


def test_any_server_runs_by_its_command(start: Start, launch: Launch) -> None:
    command = (
        f"{launch.interpreter} -m vllm.entrypoints.cli.main serve {{model}} "
        "--host=127.0.0.1 --port={port}"
    )
    process = ready(start(Launch(kind=ServerType.OPENAI, command=command, model="mine")))
    with urllib.request.urlopen(f"{process.base_url}/v1/models", timeout=5) as page:
        assert b'"id": "mine"' in page.read()


@pytest.mark.parametrize("command", ["/nowhere/server {port}", "nobodys-server-xyz {port}"])
def test_a_missing_program_is_named(start: Start, command: str) -> None:
    process = start(Launch(kind=ServerType.OPENAI, command=command))
    assert process.wait(WAIT_S)
    error = process.status.error
    assert error is not None and command.split()[0] in error.cause


def test_a_container_is_removed_after_it(
    start: Start, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted docker runs what is behind the image, and notes how it was called."""
    calls = tmp_path / "calls"
    docker = tmp_path / "tools/docker"
    docker.parent.mkdir()
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$1" = run ] || exit 0\n'
        'port=$(echo "$@" | sed "s/.*127.0.0.1:\\([0-9]*\\):8000.*/\\1/")\n'
        'while [ "$1" != "vllm/vllm-openai" ]; do shift; done; shift\n'
        f'exec {launch.interpreter} $(echo "$@" | sed "s/0.0.0.0/127.0.0.1/; s/ 8000/ $port/")\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
    from app.managed.launch import Place

    process = ready(
        start(replace(launch, place=Place.CONTAINER, image="vllm/vllm-openai", interpreter=""))
    )
    process.stop()
    assert process.wait(WAIT_S)
    run, removal = calls.read_text().splitlines()
    assert run.startswith("run --rm --init --name inferdeck") and "-p 127.0.0.1:" in run
    assert removal == "rm -f inferdeck"


def test_without_docker_it_says_so(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.managed.launch import Place

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InferdeckError, match="docker, podman"):
        ManagedProcess(replace(launch, place=Place.CONTAINER, image="x"), lambda: None)


def test_silence_ends_the_engine_of_a_window_elsewhere() -> None:
    words = supervised(sys.executable, 0.2, ["sleep", "600"], silence_s=0.4)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdin is not None and supervisor.stdout is not None
        engine = psutil.Process(int(supervisor.stdout.readline().split()[-1]))
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            supervisor.stdin.write(b".")
            supervisor.stdin.flush()
            time.sleep(0.02)
        assert engine.is_running()
        assert b"0.4" in supervisor.stdout.readline()
        supervisor.wait(WAIT_S)
    assert not engine.is_running()


# One that stays when the window closes ----------------------------------------------------------


@pytest.fixture
def staying(launch: Launch) -> Iterator[Launch]:
    yield replace(launch, stays=True)
    left = ManagedProcess.find(lambda: None, NAME)
    if left is not None:
        left.stop()
        assert left.wait(WAIT_S)


def leave(process: ManagedProcess) -> None:
    """As a window that closes."""
    process.leave()
    assert process.wait(WAIT_S)


def test_one_that_stays_is_found_again_and_stopped(staying: Launch) -> None:
    first = ready(ManagedProcess(staying, lambda: None, NAME))
    engine = engine_of(first)
    leave(first)
    wait_until(lambda: is_taken(first.port))
    assert engine.is_running()
    found = ManagedProcess.find(lambda: None, NAME)
    assert found is not None and (found.port, found.launch) == (first.port, staying)
    ready(found)
    wait_until(lambda: found.lines == first.lines)
    found.stop()
    assert found.wait(WAIT_S) and found.status.error is None
    assert "INFO:     Application shutdown complete." in found.lines
    assert not engine.is_running() and not is_taken(first.port)
    assert ManagedProcess.find(lambda: None, NAME) is None


def test_the_end_of_one_that_was_found_has_its_reason(staying: Launch) -> None:
    leave(ready(ManagedProcess(staying, lambda: None, NAME)))
    found = ManagedProcess.find(lambda: None, NAME)
    assert found is not None
    engine_of(found).kill()
    assert found.wait(WAIT_S)
    error = found.status.error
    assert error is not None and "SIGKILL" in error.cause


def test_one_that_ended_meanwhile_is_not_found(staying: Launch) -> None:
    process = ready(ManagedProcess(staying, lambda: None, NAME))
    supervisor = psutil.Process(process.pid)
    leave(process)
    supervisor.terminate()
    wait_until(lambda: not is_taken(process.port))
    wait_until(lambda: ManagedProcess.find(lambda: None, NAME) is None)


def test_another_process_of_its_number_is_not_taken_for_it(staying: Launch) -> None:
    record = Record(os.getpid(), psutil.Process().create_time() - 1.0, 20_000, staying)
    (data_dir() / f"{NAME}.json").write_bytes(msgspec.json.encode(record))
    assert ManagedProcess.find(lambda: None, NAME) is None


def test_others_end_when_the_window_closes(launch: Launch) -> None:
    process = ready(ManagedProcess(launch, lambda: None))
    process.leave()
    assert process.wait(WAIT_S) and not is_taken(process.port)
