"""An engine over ssh, against a real sshd on the loopback with a key made for the test."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from app.clients.probe import probe
from app.clients.target import Target
from app.managed import command
from app.managed import process as process_module
from app.managed.arguments import read_flags
from app.managed.command import is_taken
from app.managed.launch import Launch
from app.managed.process import ManagedProcess
from engine.errors import InferdeckError
from tests.app.managed.conftest import (
    WAIT_S,
    Sshd,
    Start,
    engine_of,
    has_ended,
    needs_sshd,
    ready,
    wait_until,
)

pytestmark = needs_sshd


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


def test_a_link_that_breaks_ends_the_engine_there(sshd: Sshd, start: Start, afar: Launch) -> None:
    slow = replace(afar, environment={"SCRIPTED_STEP": "30"})
    process = start(slow)
    engine = engine_of(process)
    began = time.monotonic()
    for one in sshd.sessions:
        one.kill()
    assert "lost" in cause(process)
    assert time.monotonic() - began < 5.0
    wait_until(lambda: has_ended(engine))


def test_a_link_that_dies_in_silence_ends_the_engine_there(
    sshd: Sshd, start: Start, afar: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cable that is pulled: nobody is told, and both ends find out by themselves."""
    monkeypatch.setattr(command, "SILENCE_S", 3.0)
    monkeypatch.setattr(process_module, "BEAT_S", 0.2)
    process = ready(start(afar))
    engine = engine_of(process)
    stopped = sshd.sessions
    for one in stopped:
        one.suspend()
    assert "lost" in cause(process)
    wait_until(lambda: has_ended(engine))
    for one in stopped:
        one.resume()
