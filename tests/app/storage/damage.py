"""Files of chats that are full, closed or damaged, and the recovery of one held in the middle."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app import paths
from app.storage import TOKENS, ChatStore, StoredConversation, StoredMessage
from app.storage import salvage as salvaging
from tests import ROOT

NUM_CHATS, NUM_MESSAGES = 12, 20
"""Chats, and messages of each: pages of every kind are needed."""


@contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond 4 bytes; the system call says that the file is too large."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As a user who may read the folder only."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    if is_root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)
        for file in folder.iterdir():
            file.chmod(0o600)


def fill(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        for c in range(NUM_CHATS):
            messages = [
                StoredMessage(f"m{c}.{n}", f"c{c}", f"m{c}.{n - 1}" if n else None, "user",
                              f"text {c} {n} " + "lorem " * (40 + 11 * n))
                for n in range(NUM_MESSAGES)
            ]  # fmt: skip
            store.add_messages(StoredConversation(f"c{c}", f"Chat {c}"), *messages)
            store.save_packed(TOKENS, f"m{c}.1", lambda: b"packed" * 40)
        store.save_preset("Mine", {"temperature": 0.3}).result(60)


def leave_companion(path: Path) -> None:
    """What a killed process leaves: the last chat is in the companion only."""
    script = """
import os, sys
from pathlib import Path
from app.storage import ChatStore, StoredConversation, StoredMessage
store = ChatStore(Path(sys.argv[1]))
one = StoredMessage("late", "c99", None, "user", "the last words")
store.add_messages(StoredConversation("c99", "Last"), one).result(60)
os._exit(9)
"""
    run = [sys.executable, "-c", script, str(path)]
    subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
    assert path.with_name(path.name + "-wal").stat().st_size


def pages_of(path: Path) -> dict[str, list[int]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, pageno FROM dbstat").fetchall()
    found: dict[str, list[int]] = {}
    for name, number in rows:
        found.setdefault(name, []).append(number)
    return found


def spoil(path: Path, *numbers: int) -> None:
    with path.open("r+b") as file:
        for number in numbers:
            file.seek((number - 1) * 4096)
            file.write(bytes(range(256)) * 16)


def recovered(store: ChatStore) -> None:
    if store.recovery is not None:
        store.recovery.ended.result(60)


class Gate:
    """Holds a recovery at its first message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        put = salvaging.put_message

        def held(*given):
            self.reached.set()
            assert self.opened.wait(60)
            return put(*given)

        monkeypatch.setattr(salvaging, "put_message", held)

    def wait(self) -> None:
        assert self.reached.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


@pytest.fixture
def damaged() -> Path:
    """A file with an unreadable page of the list of chats: that is found when it is opened."""
    path = paths.chats_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fill(path)
    spoil(path, *pages_of(path)["conversations"])
    return path
