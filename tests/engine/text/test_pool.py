"""Every future ends, whatever happens to its process, and so does every process."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, InferdeckError, OutOfMemoryError
from engine.text import pool as pools
from engine.text.lanes import SHORT_CHARACTERS
from engine.text.opening import Opening
from engine.text.pool import EncoderPool
from engine.text.process import WorkerProcess
from engine.text.tokenizer import CheckpointTokenizer
from engine.text.work import Check, Done, Failed, Text
from tests.engine.small_tokenizers import byte_level, save

SOON_S = 20.0
LONG = "x" * (SHORT_CHARACTERS + 1)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Iterator[CheckpointTokenizer]:
    tokenizer = CheckpointTokenizer(save(byte_level(), tmp_path))
    yield tokenizer
    tokenizer.close()


class FakeProcess:
    """Answers when it may, or looks until it is killed."""

    made: list[FakeProcess]
    may_start: threading.Event
    may_answer: threading.Event

    def __init__(self) -> None:
        self.source: object = None
        self.pid = len(self.made)
        self.is_running = True
        self.made.append(self)
        self.may_start.wait(SOON_S)

    def ask(self, message: Any, check: Any = lambda: None) -> Done:
        while not self.may_answer.wait(0.01):
            check()
            if not self.is_running:
                raise InferdeckError("killed")
        return Done()

    def kill(self) -> None:
        self.is_running = False

    end = kill


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    FakeProcess.made = []
    FakeProcess.may_start, FakeProcess.may_answer = threading.Event(), threading.Event()
    FakeProcess.may_start.set()
    monkeypatch.setattr(pools, "WorkerProcess", FakeProcess)
    return FakeProcess


def wait_for(count: int, processes: type[FakeProcess]) -> None:
    end = time.monotonic() + SOON_S
    while len(processes.made) < count and time.monotonic() < end:
        time.sleep(0.005)
    assert len(processes.made) == count


def all_cancelled(*futures: Future[list[int]]) -> bool:
    return all(future.cancelled() for future in futures)


@pytest.mark.parametrize("fault", ["memory", "kind"])
def test_a_reply_that_cannot_be_read(
    tokenizer: CheckpointTokenizer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    ids = tokenizer.encode("hello")

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    if fault == "memory":
        monkeypatch.setattr(pools, "array", no_memory)
    else:
        monkeypatch.setattr(WorkerProcess, "ask", lambda *_: Failed("", "", "NoSuchError"))
    with pytest.raises(OutOfMemoryError if fault == "memory" else InferdeckError):
        tokenizer.submit(Text("hello")).result(SOON_S)
    monkeypatch.undo()
    assert tokenizer.encode("hello") == ids


def test_a_long_text_that_nobody_wants_ends(
    processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_UNWANTED_S", 0.05)
    pool = EncoderPool()
    unwanted = pool.submit(Text(LONG))
    wait_for(1, processes)
    wanted = pool.submit(Text(LONG), "another")
    assert unwanted.cancel()
    wait_for(2, processes)
    assert not processes.made[0].is_running and not wanted.done()
    processes.may_answer.set()
    assert wanted.result(SOON_S) == []
    pool.close()
    pool.join()


def test_a_text_that_nobody_wants_may_end_by_itself(
    processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner than another process starts in the place of its own."""
    monkeypatch.setattr(pools, "MAX_PROCESSES", 1)
    pool = EncoderPool()
    unwanted = pool.submit(Text("hello"))
    wait_for(1, processes)
    assert unwanted.cancel()
    processes.may_answer.set()
    assert pool.submit(Text("hello")).result(SOON_S) == []
    assert len(processes.made) == 1
    pool.close()
    pool.join()


def test_closing_ends_what_was_sent_to_rest(
    processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_PROCESSES", 1)
    pool = EncoderPool()
    futures = [pool.submit(Text("hello")) for _ in range(3)]
    wait_for(1, processes)
    pool.rest()
    futures.append(pool.submit(Text("hello")))
    wait_for(2, processes)
    pool.close()
    pool.rest()  # opens it no more
    futures.append(pool.submit(Text("hello")))
    pool.join()
    assert all_cancelled(*futures)
    assert len(processes.made) == 2 and not any(one.is_running for one in processes.made)


def test_closing_ends_a_process_that_is_just_starting(processes: type[FakeProcess]) -> None:
    processes.may_start.clear()
    pool = EncoderPool()
    future = pool.submit(Text("hello"))
    wait_for(1, processes)
    pool.close()
    processes.may_start.set()
    pool.join()
    assert future.cancelled() and not processes.made[0].is_running


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), MemoryError),
        (OSError(errno.EMFILE, "too many"), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("damaged"), CheckpointError),
        (OSError("wrapped"), OSError),
    ],
)
def test_whatever_reading_raises_closes_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: type[BaseException]
) -> None:
    from engine.lazy_transformers import AutoTokenizer

    if str(error) == "wrapped":  # as transformers does it
        error.__context__ = OSError(errno.EMFILE, "too many")

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    save(byte_level(), tmp_path)
    opening = Opening(tmp_path)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fails)
    with pytest.raises(kind) as caught:
        opening.read()
    assert kind is not OSError or caught.value.errno == errno.EMFILE  # type: ignore[attr-defined]
    opening.pool.join()
    with pytest.raises(CancelledError):
        opening.pool.check(Check(str(tmp_path), 0)).result(SOON_S)
