"""Full disks, damaged pages, files of others: chats are shown, and nothing is overwritten."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app import paths
from app.features.chat.conversation import connected
from app.storage import (
    NEW,
    TOKENS,
    ChatStore,
    StoredConversation,
    StoredMessage,
    copies,
    open_store,
)
from app.storage.database import COMPANIONS
from app.storage.errors import StorageCorruptError
from tests import ROOT
from tests.app.storage.damage import (
    NUM_CHATS,
    NUM_MESSAGES,
    fill,
    full_disk,
    leave_companion,
    pages_of,
    read_only,
    recovered,
    spoil,
)


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-chats-"))  # pytest's own is closed to other users
    yield folder / "chats.sqlite3"
    shutil.rmtree(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.is_file() and not file.name.endswith((".lock", "-shm"))
    }


UNWRITABLE = {
    "full": (lambda folder: full_disk(), "StorageFullError"),
    "read-only": (read_only, "StorageReadOnlyError"),
}


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("fault", UNWRITABLE)
def test_chats_are_shown_and_changes_are_saved_when_the_file_can_be_written(
    path: Path, fault: str, is_killed: bool
) -> None:
    fill(path)
    if is_killed:
        leave_companion(path)
    make, kind = UNWRITABLE[fault]
    with make(path.parent):
        store = open_store(path)
        assert store.problem is not None and store.problem.kind == kind and store.spoiled is None
        assert str(path.parent) in store.problem.cause
        expected = NUM_CHATS + is_killed
        assert len(store.conversations()) == expected
        assert len(store.messages("c3")) == NUM_MESSAGES
        new = StoredConversation("new", "New")
        reply = StoredMessage("r", "new", None, "assistant", "half", "streaming")
        store.add_messages(new, reply).result(60)
        for text in ("more", "all of it"):
            store.save_message(StoredMessage("r", "new", None, "assistant", text)).result(60)
        store.save_packed(TOKENS, "r", lambda: b"tokens").result(60)
        store.delete_conversation("c1").result(60)
        store.delete_preset("Mine").result(60)
        store.save_unsent(NEW, "draft").result(60)
        assert type(store.resume().exception(60)).__name__ == kind
        assert len(store._writer.pending or ()) < 8  # the last one of each
    with closing(store):
        store.resume().result(60)
        assert store.problem is None and store.spoiled is None
        store.save_unsent("new", "after").result(60)
    with closing(ChatStore(path)) as again:
        kept = {one.id for one in again.conversations()}
        assert "new" in kept and "c1" not in kept and len(kept) == expected
        assert [m.text for m in again.messages("new")] == ["all of it"]
        assert again.packed(TOKENS, "r") == b"tokens" and again.presets() == {}
        assert again.unsent() == {NEW: "draft", "new": "after"}
        assert [m.text for m in again.messages("c99")] == ["the last words"] * is_killed


def test_a_disk_that_is_full_at_the_first_start_takes_the_chats_later(path: Path) -> None:
    with full_disk():
        store = open_store(path)
        assert store.problem is not None and store.problem.kind == "StorageFullError"
        store.add_messages(StoredConversation("c", "First")).result(60)
    with closing(store):
        store.resume().result(60)
    with closing(ChatStore(path)) as again:
        assert [c.id for c in again.conversations()] == ["c"]


def test_a_locked_file_is_shared_when_the_other_window_is_gone(path: Path) -> None:
    fill(path)
    first = ChatStore(path)
    with closing(open_store(path)) as second:
        assert second.problem is not None and second.problem.kind == "StorageLockedError"
        second.add_messages(StoredConversation("ours", "Ours")).result(60)
        first.add_messages(StoredConversation("theirs", "Theirs")).result(60)
        first.close()
        second.resume().result(60)
        assert {"ours", "theirs"} <= {c.id for c in second.conversations()}


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks(url TEXT)")
        connection.execute("PRAGMA user_version = 2")


def make_marked(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 1196444487")


OTHERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "bookmarks": (make_foreign, "StorageForeignError", "bookmarks"),
    "application id": (make_marked, "StorageForeignError", "1196444487"),
    "FIFO": (os.mkfifo, "StorageForeignError", "chats.sqlite3"),
    "folder": (os.mkdir, "StorageForeignError", "chats.sqlite3"),
    "0 bytes": (Path.touch, "StorageCorruptError", "0 bytes"),
    "1 byte": (lambda path: path.write_bytes(b"S"), "StorageCorruptError", "1 bytes"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_and_empty_ones_are_named_and_unchanged(path: Path, name: str) -> None:
    make, kind, said = OTHERS[name]
    make(path)
    before = files_of(path.parent)
    with closing(open_store(path)) as store:
        assert store.problem is not None and store.problem.kind == kind
        assert said in store.problem.cause and store.problem.remedy
        store.add_messages(StoredConversation("c", "Written meanwhile")).result(60)
        assert files_of(path.parent) == before
        if kind == "StorageCorruptError":
            recovered(store)
            renewed = store.start_new_file().result(60)
            assert renewed.aside.stat().st_size <= 1 and renewed.num_conversations == 1
        else:
            assert store.spoiled is None
            path.rmdir() if path.is_dir() else path.rename(path.with_name("theirs"))
            store.resume().result(60)
    with closing(ChatStore(path)) as again:
        assert [c.id for c in again.conversations()] == ["c"]


LIES = {
    "version 0": (60, bytes(4)), "negative version": (60, b"\xff" * 4),
    "schema format": (44, b"\0\0\0\x63"), "write version": (18, b"\x09"),
}  # fmt: skip
"""Offset in SQLite's header, and the bytes there."""


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_keeps_no_window_closed(path: Path, name: str) -> None:
    with closing(ChatStore(path)) as store:
        store.add_messages(StoredConversation("before", "Before")).result(60)
    offset, content = LIES[name]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    before = path.read_bytes()
    with closing(open_store(path)) as store:
        assert store.problem is not None and store.problem.remedy
        assert str(path) in store.problem.cause
        store.add_messages(StoredConversation("c", "Written meanwhile")).result(60)
        assert "c" in [c.id for c in store.conversations()]
    assert path.read_bytes() == before


def all_of(store: ChatStore) -> dict[str, int]:
    """Also of a file that turns out to be damaged now."""
    for chat in store.conversations():
        store.messages(chat.id)
    recovered(store)
    return {c.id: len(store.messages(c.id)) for c in store.conversations()}


@pytest.mark.slow
def test_any_damaged_page_costs_what_is_on_it(path: Path) -> None:
    fill(path)
    whole, pages = path.read_bytes(), pages_of(path)
    most = 3 * max(1, NUM_CHATS * NUM_MESSAGES // (len(pages["messages"]) - 1))
    own = {"messages", "conversations", "reply_tokens"}
    for table in (*sorted(own), "messages_fts_data", "messages_of_conversation"):
        for number in pages[table]:
            path.write_bytes(whole)
            spoil(path, number)
            before = path.read_bytes()
            with closing(open_store(path)) as store:
                found = all_of(store)
                lost = NUM_CHATS * NUM_MESSAGES - sum(found.values())
                is_root = table == "messages" and number == min(pages[table])
                assert is_root or lost <= most, (table, number)
                if store.problem is not None:
                    assert store.spoiled == path and path.read_bytes() == before
                    assert f"{sum(found.values()):,}" in store.problem.cause
                assert table not in ("messages", "conversations") or store.problem is not None


def test_what_can_be_saved_is_counted_and_goes_to_the_new_file(path: Path) -> None:
    fill(path)
    leaves = [n for n in pages_of(path)["messages"] if n != min(pages_of(path)["messages"])]
    spoil(path, *leaves[3:5])
    damaged = path.read_bytes()
    with closing(open_store(path)) as store:
        store.add_messages(StoredConversation("new", "New")).result(60)
        found = all_of(store)
        assert store.presets() == {"Mine": {"temperature": 0.3}}
        renewed = store.start_new_file().result(60)
        assert store.problem is None and store.spoiled is None
        assert renewed.aside.read_bytes() == damaged
        assert renewed.num_conversations == NUM_CHATS + 1
        assert renewed.num_messages == sum(found.values())
        assert NUM_CHATS * NUM_MESSAGES - 40 < renewed.num_messages < NUM_CHATS * NUM_MESSAGES
        assert store.search("lorem") and not os.path.exists(f"{path}.new")
    with closing(ChatStore(path)) as again:
        assert all_of(again) == found
        for c in range(NUM_CHATS):  # each message has a parent that there is
            messages = connected(again.messages(f"c{c}"))
            known = {m.id for m in messages}
            assert all(m.parent_id is None or m.parent_id in known for m in messages)


def test_damage_that_a_write_meets_first_costs_nothing(path: Path) -> None:
    fill(path)
    spoil(path, *pages_of(path)["messages_fts_data"])
    with closing(open_store(path)) as store:
        late = StoredMessage("late", "c0", "m0.19", "user", "written to a damaged index")
        store.add_messages(StoredConversation("c0", "Chat 0"), late).result(60)
        assert store.problem is not None and store.problem.kind == "StorageCorruptError"
        assert sum(all_of(store).values()) == NUM_CHATS * NUM_MESSAGES + 1


def test_damaged_values_hide_no_chat(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        deep = "[" * 100_000
        connection.execute("UPDATE conversations SET sampling = ? WHERE id = 'c1'", (deep,))
        connection.execute("UPDATE conversations SET sampling = '3' WHERE id = 'c2'")
        connection.execute("UPDATE messages SET figures = '{', passages = '7' WHERE id = 'm1.1'")
        connection.execute("UPDATE messages SET text = CAST(x'ff41' AS TEXT) WHERE id = 'm1.2'")
        connection.commit()
    with closing(open_store(path)) as store:
        assert store.problem is None
        assert all_of(store) == {f"c{c}": NUM_MESSAGES for c in range(NUM_CHATS)}
        assert store.messages("c1")[2].text == "\N{REPLACEMENT CHARACTER}A"


def test_a_killed_copy_leaves_nothing_behind(path: Path) -> None:
    fill(path)
    script = """
import sys, time
from pathlib import Path
from app.storage import StoredConversation, StoredMessage, open_store
store = open_store(Path(sys.argv[1]))
assert store.problem is not None and len(store.conversations()) == 12
large = StoredMessage("m", "c", None, "user", "x" * 1_000_000)
store.add_messages(StoredConversation("c", "t"), large).result(60)
print("copied", flush=True)
time.sleep(600)
"""
    temporary = path.parent / "temporary"
    temporary.mkdir()
    names = {"TMPDIR": str(temporary), "SQLITE_TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    with closing(ChatStore(path)):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **names},
        )  # fmt: skip
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "copied\n"
        finally:
            child.kill()
            child.wait(60)
            child.stdout.close()
    assert list(temporary.iterdir()) == []


def test_copies_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, used, new = (tmp_path / f"{copies.PREFIX}{name}" for name in ("old", "used", "new"))
    for folder in (old, used, new):
        folder.mkdir()
        (folder / "chats.sqlite3").write_bytes(b"chats")
    with closing(ChatStore(used / "other.sqlite3")):
        lock = copies.process_lock(used / "chats.sqlite3")
        for folder in (old, used):
            os.utime(folder, (time.time() - 2 * copies.STALE_S,) * 2)
        copies.sweep()
        lock.close()
    assert not old.exists() and used.exists() and new.exists()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "data" / "chats.sqlite3"
        with closing(ChatStore(path)) as store:
            store.add_messages(StoredConversation("c", "t")).result(60)
            names = [path.with_name(path.name + c) for c in (*COMPANIONS, ".lock")]
            assert [mode_of(name) for name in names] == [0o600] * 4
        assert mode_of(path.parent) == 0o700
    finally:
        os.umask(before)


def test_files_of_earlier_versions_are_tightened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INFERDECK_DATA_DIR", "INFERDECK_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    data, config = tmp_path / "share" / "inferdeck", tmp_path / "config" / "inferdeck"
    ours = [
        data / "chats.sqlite3", data / "chats-kept-1.sqlite3", data / "inferdeck.log",
        data / "evaluations" / "one" / "report.json", config / "window.ini",
    ]  # fmt: skip
    theirs = data / "models" / "model.safetensors"
    for file in (*ours, theirs):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        file.write_text("x")
        file.chmod(0o644)
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    (data / "chats-link.sqlite3").symlink_to(outside)
    paths.tighten()
    assert [mode_of(file) for file in ours] == [0o600] * len(ours)
    folders = (data, config, data / "evaluations", data / "evaluations" / "one")
    assert [mode_of(folder) for folder in folders] == [0o700] * 4
    assert mode_of(theirs) == mode_of(outside) == 0o644


def test_reading_a_copy_that_fails_too_is_an_error_of_the_store(path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.DatabaseError("malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    store = ChatStore(path)
    try:
        with pytest.raises(StorageCorruptError):
            store._reading(fail)
        assert store.spoiled == path
    finally:
        store.close()


def test_a_store_opens_where_the_system_has_no_posix_flags(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_NONBLOCK", raising=False)
    ChatStore(path).close()
