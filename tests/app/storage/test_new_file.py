"""A new file in place of an old one: whenever the process is killed or a call fails, both are
there, or nothing has changed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.storage import ChatStore, StoredConversation, database
from app.storage.database import make, migrate
from app.storage.records import put_conversation

OLD, COMPANION = b"an old file" * 1000, b"its last changes" * 1000
CALLS = ((os, "link"), (Path, "rename"), (Path, "replace"), (Path, "unlink"))
"""What changes names; a call of each of these is one moment."""
NUM_CALLS = 10


class Moment:
    """Calls `strike` in place of call number `number` of all CALLS."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, strike: Callable) -> None:
        self.left = number
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name), strike))

    def _watched(self, call: Callable, strike: Callable) -> Callable:
        def watched(*given: Any, **named: Any) -> Any:
            self.left -= 1
            return strike() if self.left == -1 else call(*given, **named)

        return watched


def fill(connection: sqlite3.Connection) -> None:
    migrate(connection)
    put_conversation(connection, StoredConversation("new", "New"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chats.sqlite3"
    path.write_bytes(OLD)
    path.with_name("chats.sqlite3-wal").write_bytes(COMPANION)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def holds_old(files: dict[str, bytes]) -> bool:
    return any(
        content == OLD and files.get(f"{name}-wal") == COMPANION for name, content in files.items()
    )


def killed(monkeypatch: pytest.MonkeyPatch, number: int, path: Path) -> bool:
    """Whether `make` was killed at this moment, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        with monkeypatch.context() as patch:
            Moment(patch, number, lambda: os._exit(9))
            make(path, fill)
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 9


@pytest.mark.parametrize("number", range(NUM_CALLS + 1))
def test_a_killed_process_leaves_the_old_file_or_the_new_one(
    monkeypatch: pytest.MonkeyPatch, path: Path, number: int
) -> None:
    was_killed = killed(monkeypatch, number, path)
    files = contents(path.parent)
    assert was_killed == (number < NUM_CALLS) and holds_old(files)
    if files.get(path.name) == OLD:
        assert was_killed and files[f"{path.name}-wal"] == COMPANION
        return
    with closing(ChatStore(path)) as store:
        assert store.problem is None and [c.id for c in store.conversations()] == ["new"]
    assert holds_old(contents(path.parent))


@pytest.mark.parametrize("number", range(NUM_CALLS + 1))
def test_after_a_call_that_fails_nothing_has_changed_or_all(
    monkeypatch: pytest.MonkeyPatch, path: Path, number: int
) -> None:
    before = contents(path.parent)

    def fail() -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        Moment(patch, number, fail)
        try:
            aside = make(path, fill)
        except OSError:
            assert contents(path.parent) == before
            return
    assert aside is not None and holds_old(contents(path.parent))
    with closing(ChatStore(path)) as store:
        assert [c.id for c in store.conversations()] == ["new"]


def test_a_file_system_without_hard_links_keeps_copies(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    def refuse(*given: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    aside = make(path, fill)
    assert aside is not None and aside.read_bytes() == OLD
    assert aside.with_name(f"{aside.name}-wal").read_bytes() == COMPANION
    assert sorted(contents(path.parent)) == sorted([path.name, aside.name, f"{aside.name}-wal"])


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_half_written_file_is_not_put_in_place(tmp_path: Path, has_journal: bool) -> None:
    path = tmp_path / "chats.sqlite3"
    fresh = database._fresh(path)
    if has_journal:
        with closing(sqlite3.connect(fresh)) as connection:
            fill(connection)
            connection.commit()
        fresh.with_name(f"{fresh.name}-journal").write_bytes(b"a transaction that did not end")
    else:
        fresh.write_bytes(b"SQLite format 3\0")
    with closing(ChatStore(path)) as store:
        assert store.problem is None and store.conversations() == []
    assert not [name for name in contents(tmp_path) if ".new" in name]
