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
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    aside = make(path, fill)
    assert aside is not None and aside.read_bytes() == OLD and len(synced) == 2
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


def make_newer(fresh: Path) -> None:
    with closing(sqlite3.connect(fresh)) as connection:
        migrate(connection)
        connection.execute("PRAGMA user_version = 999")


@pytest.mark.parametrize("leave", [make_newer, Path.mkdir])
@pytest.mark.parametrize("is_first_start", [False, True])
def test_a_file_left_by_others_keeps_no_window_from_saving(
    tmp_path: Path, leave: Callable[[Path], object], is_first_start: bool
) -> None:
    path = tmp_path / "chats.sqlite3"
    if not is_first_start:
        ChatStore(path).close()
    leave(database._fresh(path))
    with closing(ChatStore(path)) as store:
        assert store.problem is None and not database._fresh(path).exists()


def test_a_whole_file_that_was_left_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    ChatStore(path).close()
    with closing(sqlite3.connect(database._fresh(path), isolation_level=None)) as connection:
        fill(connection)
    ChatStore(path).close()
    path.unlink()
    with closing(ChatStore(path)) as store:
        assert store.conversations() == []


@pytest.mark.parametrize("is_made", [False, True])
def test_the_companion_of_a_file_that_was_moved_away_is_kept(path: Path, is_made: bool) -> None:
    path.unlink()
    if is_made:
        with closing(sqlite3.connect(database._fresh(path), isolation_level=None)) as connection:
            fill(connection)
    with closing(ChatStore(path)) as store:
        assert store.problem is None and len(store.conversations()) == is_made
    assert path.with_name("chats-kept-1.sqlite3-wal").read_bytes() == COMPANION
