"""Which processes that encode are given to the next test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.text.work import Done, Text
from tests import encoders
from tests.encoders import KeptProcess


class Process:
    """In the place of a process that encodes. meanwhile: happens while it does."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.is_running, self.has_ended, self._reader = True, False, None

    def ask(self, message: object, check: object) -> Done:
        self.meanwhile()
        return Done()

    def kill(self) -> None:
        self.is_running = False

    def end(self) -> None:
        self.is_running, self.has_ended = False, True


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(encoders, "WorkerProcess", Process)
    kept: list[Any] = []
    monkeypatch.setattr(encoders, "_kept", kept)
    return kept


def test_an_idle_one_is_used_again(kept: list[Any]) -> None:
    first = KeptProcess()
    first.source = "a tokenizer"
    first.ask(Text("a"))
    first.kill()
    assert not first.is_running
    first.end()
    (process,) = kept
    second = KeptProcess()
    assert second._process is process and process.is_running and kept == []
    assert second.is_running and second.source is None


def test_one_that_is_ended_while_it_encodes_ends(kept: list[Any]) -> None:
    busy, kills = KeptProcess(), list[bool]()
    busy._process.meanwhile = busy.kill  # type: ignore[method-assign]
    busy._process.kill = lambda: kills.append(True)  # type: ignore[method-assign]
    busy.ask(Text("a"))
    assert kills and busy._process.is_running  # a signal takes its time
    busy.end()
    assert busy._process.has_ended and kept == []


def test_one_that_failed_ends(kept: list[Any]) -> None:
    failing = KeptProcess()
    failing._process.meanwhile = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        failing.ask(Text("a"))
    failing.end()
    assert failing._process.has_ended and kept == []


def test_one_that_died_meanwhile_is_not_used(kept: list[Any]) -> None:
    KeptProcess().end()
    (process,) = kept
    process.kill()
    assert KeptProcess()._process is not process and process.has_ended


def test_few_are_kept(kept: list[Any]) -> None:
    made = [KeptProcess() for _ in range(4)]
    for one in made:
        one.end()
    assert len(kept) == 2 and sum(one._process.has_ended for one in made) == 2
    encoders.end()
    assert kept == [] and all(one._process.has_ended for one in made)
