"""An engine ends with the window, whichever processes between the two are killed with SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from app.managed import command
from app.managed.launch import Launch, Place
from app.managed.supervisor import supervised
from tests import ROOT
from tests.app.managed.conftest import Sshd, has_ended, needs_sshd, wait_until
from tests.tiers import first_fast

WINDOW = """
import sys, time, msgspec
from app.managed import command
from app.managed.launch import Launch
from app.managed.process import ManagedProcess
command.SSH = msgspec.json.decode(sys.argv[2])
made = ManagedProcess(msgspec.json.decode(sys.argv[1], type=Launch), lambda: None)
while made.status.state == "starting": time.sleep(0.05)
print(next(one for one in made.lines if one.startswith("supervisor: pid ")), flush=True)
time.sleep(600)
"""


@contextmanager
def window_of(launch: Launch) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A program that runs an engine, and what its supervisor started."""
    given = (msgspec.json.encode(one).decode() for one in (launch, command.SSH))
    words = [sys.executable, "-c", WINDOW, *given]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as window:
        assert window.stdout is not None
        engine = psutil.Process(int(window.stdout.readline().split()[-1]))
        yield psutil.Process(window.pid), engine
        window.kill()


def kill_all(victims: str, known: dict[str, list[psutil.Process]]) -> None:
    """victims: names, with spaces between."""
    if "supervisor" in victims and sys.platform != "linux":
        pytest.skip("only Linux ends the engine of a killed supervisor")
    for name in victims.split():
        assert known[name]
        for one in known[name]:
            one.kill()


def supervisor_of(engine: psutil.Process) -> psutil.Process:
    found = engine.parent()
    assert found is not None
    return found


@pytest.mark.parametrize("victims", first_fast(2, ["window", "supervisor", "supervisor window"]))
@pytest.mark.parametrize("stays", [False, True])
def test_here(launch: Launch, victims: str, stays: bool) -> None:
    """One that stays outlives the window alone: without a supervisor nobody would end it."""
    with window_of(replace(launch, stays=stays)) as (window, engine):
        supervisor = supervisor_of(engine)
        kill_all(victims, {"window": [window], "supervisor": [supervisor]})
        if stays and victims == "window":
            window.wait()
            assert engine.is_running() and supervisor.is_running()
            supervisor.terminate()
        wait_until(lambda: has_ended(engine))


@pytest.mark.skipif(sys.platform != "linux", reason="F_SETSIG")
def test_workers_that_ignore_signals_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"trap '' INT TERM HUP; sleep 600 & echo $! > {file}; wait"
    words = supervised(sys.executable, 600.0, ["sh", "-c", script])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        engine = psutil.Process(int(supervisor.stdout.readline().split()[-1]))
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        worker = psutil.Process(int(file.read_text()))
        supervisor.kill()
    wait_until(lambda: has_ended(engine) and has_ended(worker))


@needs_sshd
@pytest.mark.parametrize(
    "victims", first_fast(2, ["window", "ssh", "session", "supervisor", "supervisor ssh"])
)
def test_over_ssh(sshd: Sshd, afar: Launch, victims: str) -> None:
    with window_of(afar) as (window, engine):
        known = {
            "window": [window], "ssh": window.children(), "session": sshd.sessions,
            "supervisor": [supervisor_of(engine)],
        }  # fmt: skip
        kill_all(victims, known)
        wait_until(lambda: has_ended(engine))


@pytest.mark.parametrize("victims", first_fast(1, ["window", "supervisor", "docker"]))
def test_in_a_container(
    launch: Launch, victims: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted docker, whose engine is no child of the command, as that of a daemon. It passes
    SIGTERM on, as docker does (docs.docker.com, docker run --sig-proxy)."""
    docker, file = tmp_path / "tools/docker", tmp_path / "pid"
    docker.parent.mkdir()
    docker.write_text(
        f'#!/bin/sh\nif [ "$1" = rm ]; then kill -9 $(cat {file}); exit; fi\n'
        'port=$(echo "$@" | sed "s/.*127.0.0.1:\\([0-9]*\\):8000.*/\\1/")\n'
        'while [ "$1" != "vllm/vllm-openai" ]; do shift; done; shift\n'
        f'setsid {launch.interpreter} $(echo "$@" | sed "s/0.0.0.0/127.0.0.1/; s/ 8000/ $port/") &'
        f"\necho $! > {file}\ntrap 'kill $(cat {file})' TERM\nwait\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
    boxed = replace(launch, place=Place.CONTAINER, image="vllm/vllm-openai", interpreter="")
    with window_of(boxed) as (window, run):
        engine = psutil.Process(int(file.read_text()))
        known = {"window": [window], "supervisor": [supervisor_of(run)], "docker": [run]}
        kill_all(victims, known)
        wait_until(lambda: has_ended(engine))
