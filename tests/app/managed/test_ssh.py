"""An engine over ssh, against a real sshd on the loopback with a key made for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from app.clients.probe import probe
from app.clients.target import Target
from app.managed import command
from app.managed import process as process_module
from app.managed.arguments import read_flags
from app.managed.command import free_port, is_taken
from app.managed.launch import Launch, Place
from app.managed.process import ManagedProcess, State
from engine.errors import InferdeckError
from tests.app.managed.conftest import WAIT_S, Start, wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(
    not (SSHD and shutil.which("ssh-keygen")), reason="needs sshd and ssh-keygen"
)


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


def ready(process: ManagedProcess) -> ManagedProcess:
    wait_until(lambda: process.status.state is not State.STARTING)
    assert process.status.state is State.READY, process.lines[-5:]
    return process


def cause(process: ManagedProcess) -> str:
    assert process.wait(WAIT_S)
    assert process.status.error is not None
    return process.status.error.cause


def test_its_life_over_ssh(sshd: Sshd, start: Start, afar: Launch) -> None:
    process = ready(start(afar))
    assert probe(Target(process.base_url), 5.0).models == ("starter",)
    process.stop()
    assert process.wait(WAIT_S) and process.status.error is None
    wait_until(lambda: not is_taken(process.port))


def test_its_flags_are_read_there(sshd: Sshd, afar: Launch) -> None:
    assert read_flags(afar).version == "0.32.0"
    with pytest.raises(InferdeckError):
        read_flags(replace(afar, interpreter="/nowhere/python"))


def test_a_changed_host_key_is_said(sshd: Sshd, start: Start, afar: Launch) -> None:
    sshd.trust("other")
    assert "host key" in cause(start(afar))


def test_a_wanted_password_is_said(sshd: Sshd, start: Start, afar: Launch) -> None:
    (sshd.folder / "authorized").write_text((sshd.folder / "other.pub").read_text())
    assert "password" in cause(start(afar))


def test_nobody_there_is_said(sshd: Sshd, start: Start, afar: Launch) -> None:
    sshd.close()
    assert "cannot be reached" in cause(start(afar))


def test_a_link_that_breaks_ends_the_engine_there(
    sshd: Sshd, start: Start, afar: Launch, tmp_path: Path
) -> None:
    slow = replace(afar, environment={"SCRIPTED_STEP": "30"})
    process = start(slow)
    pid = lambda: next((s for s in process.lines if s.startswith("supervisor: pid ")), "")
    wait_until(lambda: bool(pid()))
    engine = Path(f"/proc/{pid().split()[-1]}")
    began = time.monotonic()
    _kill_sessions(sshd.process.pid)
    assert "lost" in cause(process)
    assert time.monotonic() - began < 5.0
    wait_until(lambda: not engine.exists() or "Z" in (engine / "stat").read_text().split()[2])


def test_a_link_that_dies_in_silence_ends_the_engine_there(
    sshd: Sshd, start: Start, afar: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cable that is pulled: nobody is told, and both ends find out by themselves."""
    monkeypatch.setattr(command, "SILENCE_S", 3.0)
    monkeypatch.setattr(process_module, "BEAT_S", 0.2)
    process = ready(start(afar))
    pid = next(s for s in process.lines if s.startswith("supervisor: pid "))
    engine = psutil.Process(int(pid.split()[-1]))
    stopped = _sessions(sshd.process.pid)
    for one in stopped:
        one.suspend()
    assert "lost" in cause(process)
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    for one in stopped:
        one.resume()


def _sessions(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [one for one in children if one.name().startswith("sshd")]


def _kill_sessions(pid: int) -> None:
    """End every connection of a server."""
    for one in _sessions(pid):
        one.kill()
