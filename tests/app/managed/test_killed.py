"""An engine ends with the window, whichever process between the two is killed with SIGKILL."""

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
from tests import ROOT
from tests.app.managed.conftest import Sshd, has_ended, needs_sshd, wait_until

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


def supervisor_of(engine: psutil.Process) -> psutil.Process:
    found = engine.parent()
    assert found is not None
    return found


@pytest.mark.parametrize("victim", ["window", "supervisor"])
@pytest.mark.parametrize("stays", [False, True])
def test_here(launch: Launch, victim: str, stays: bool) -> None:
    """One that stays outlives the window alone: without a supervisor nobody would end it."""
    with window_of(replace(launch, stays=stays)) as (window, engine):
        supervisor = supervisor_of(engine)
        killed = window if victim == "window" else supervisor
        killed.kill()
        if stays and killed is window:
            window.wait()
            assert engine.is_running() and supervisor.is_running()
            supervisor.terminate()
        wait_until(lambda: has_ended(engine))


@needs_sshd
@pytest.mark.parametrize("victim", ["window", "ssh", "session", "supervisor"])
def test_over_ssh(sshd: Sshd, afar: Launch, victim: str) -> None:
    with window_of(afar) as (window, engine):
        victims = {
            "window": [window], "ssh": window.children(), "session": sshd.sessions,
            "supervisor": [supervisor_of(engine)],
        }[victim]  # fmt: skip
        assert victims
        for one in victims:
            one.kill()
        wait_until(lambda: has_ended(engine))


@pytest.mark.parametrize("victim", ["window", "supervisor", "docker"])
def test_in_a_container(
    launch: Launch, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted docker, whose engine is no child of the command, as that of a daemon."""
    docker, file = tmp_path / "tools/docker", tmp_path / "pid"
    docker.parent.mkdir()
    docker.write_text(
        f'#!/bin/sh\nif [ "$1" = rm ]; then kill -9 $(cat {file}); exit; fi\n'
        'port=$(echo "$@" | sed "s/.*127.0.0.1:\\([0-9]*\\):8000.*/\\1/")\n'
        'while [ "$1" != "vllm/vllm-openai" ]; do shift; done; shift\n'
        f'setsid {launch.interpreter} $(echo "$@" | sed "s/0.0.0.0/127.0.0.1/; s/ 8000/ $port/") &'
        f"\necho $! > {file}\nwait\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
    boxed = replace(launch, place=Place.CONTAINER, image="vllm/vllm-openai", interpreter="")
    with window_of(boxed) as (window, run):
        engine = psutil.Process(int(file.read_text()))
        victims = {"window": window, "supervisor": supervisor_of(run), "docker": run}
        victims[victim].kill()
        wait_until(lambda: has_ended(engine))
