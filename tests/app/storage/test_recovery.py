"""Recovery of a damaged file of chats: in its own thread, to be cancelled at any time."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
import threading
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from app.storage import ChatStore, StoredConversation, StoredMessage, copies, open_store
from app.storage.copies import salvaged
from app.storage.recovery import Recovery
from app.storage.salvage import RecoveryCancelled, Salvaged
from tests.app.storage.damage import (
    NUM_CHATS,
    NUM_MESSAGES,
    Gate,
    damaged,
    fill,
    gate,
    leave_companion,
    pages_of,
    recovered,
)

__all__ = ["damaged", "gate"]


def test_closing_during_a_recovery_leaves_the_file(gate: Gate, damaged: Path) -> None:
    before = damaged.read_bytes()
    store = open_store(damaged)
    gate.wait()
    store.save_unsent("", "draft").result(60)
    recovery = store.recovery
    assert recovery is not None
    threading.Timer(0.05, gate.opened.set).start()
    store.close()
    recovery.ended.result(60)
    assert recovery.is_cancelled and damaged.read_bytes() == before


def test_a_message_that_came_before_its_chat_is_kept(gate: Gate, damaged: Path) -> None:
    with closing(open_store(damaged)) as store:
        gate.wait()
        chat = StoredConversation("new", "New")
        store.save_conversation(chat).result(60)
        store.save_message(StoredMessage("m", "new", None, "user", "hi")).result(60)
        store.save_conversation(chat).result(60)  # is now the last job
        gate.opened.set()
        recovered(store)
        assert [m.id for m in store.messages("new")] == ["m"]
        assert len(store.conversations()) == NUM_CHATS + 1


def test_pages_in_a_circle_end(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    fill(path)
    root, *leaves = sorted(pages_of(path)["messages"])
    content = bytearray(path.read_bytes())
    start = (root - 1) * 4096
    assert content[start] == 5  # an inner page of a table
    (count,) = struct.unpack_from(">H", content, start + 3)
    for number in range(count):  # each child is the first leaf, or the page itself
        (cell,) = struct.unpack_from(">H", content, start + 12 + 2 * number)
        struct.pack_into(">I", content, start + cell, root if number % 3 == 2 else leaves[0])
    path.write_bytes(content)
    with closing(open_store(path)) as store:
        store.messages("c0")
        store.search("lorem")
        found = Salvaged()
        salvaged(path, found, lambda: False).close()
        assert found.conversations == NUM_CHATS and found.messages > 0


def test_a_recovery_cancelled_at_any_moment_is_cancelled_or_whole(damaged: Path) -> None:
    empty = damaged.with_name("empty.sqlite3")
    ChatStore(empty).close()
    with pytest.raises(RecoveryCancelled):
        salvaged(empty, Salvaged(), lambda: True)
    seen: list[tuple[bool, int]] = []

    def finish(copy: sqlite3.Connection | None) -> Future[None]:
        recovery.cancel()
        assert copy is not None
        copy.close()
        seen.append((recovery.is_cancelled, recovery.found.messages))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    recovery = Recovery(damaged, finish)
    recovery.start()
    recovery.ended.result(60)
    recovery.join()
    assert seen == [(False, NUM_CHATS * NUM_MESSAGES)]
    assert recovery.text == recovery.found.text


def test_copying_a_file_with_a_companion_is_cancelled_between_pieces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "chats.sqlite3"
    fill(path)
    leave_companion(path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(copies, "PIECE", 1000)
    sizes: list[int] = []

    def stops() -> bool:
        sizes.append(sum(file.stat().st_size for file in temporary.rglob("chats*")))
        return len(sizes) == 5

    with pytest.raises(RecoveryCancelled):
        salvaged(path, Salvaged(), stops)
    assert len(sizes) == 5 and max(sizes) <= 4 * 1000
    assert list(temporary.iterdir()) == []
