"""Values of wrong types in files of chats and settings: each costs itself, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.features.chat.controller import ChatController
from app.features.chat.page import ChatPage
from app.storage import ChatStore, StoredConversation, StoredMessage
from app.storage.json_file import write_whole
from app.storage.salvage import Salvaged, salvage
from app.storage.writer import Writer
from app.wire import recording
from tests.app.fake_engine import FakeEngine
from tests.tiers import first_fast

NUM_CHATS = 10
WRONG = ("'{'", "x'fffe'", "5.5", "9e999", "-1e300", "'[]'", "'{\"a\": [1]}'", "'[{\"name\": 5}]'")
COLUMNS = {
    "conversations": ("title", "title_is_automatic", "system_prompt", "sampling", "preset",
                      "created", "updated", "is_pinned", "is_archived"),
    "messages": ("parent_id", "role", "text", "state", "shown", "created", "figures", "error",
                 "attachments", "passages"),
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chats.sqlite3"
    with closing(ChatStore(path)) as store:
        for n in range(NUM_CHATS):
            chat = StoredConversation(f"c{n}", f"chat {n}", updated=float(n))
            ask = StoredMessage(f"a{n}", chat.id, None, "user", f"question {n}")
            reply = StoredMessage(f"b{n}", chat.id, ask.id, "assistant", f"answer {n}")
            store.add_messages(chat, ask, reply).result(60)
    return path


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA writable_schema = ON; {sql}")


@pytest.mark.parametrize("table", first_fast(1, COLUMNS))
def test_a_value_of_a_wrong_type_hides_nothing_else(qtbot: QtBot, path: Path, table: str) -> None:
    whole = path.read_bytes()
    key = "'c'" if table == "conversations" else "'b'"
    for value in WRONG:
        path.write_bytes(whole)
        change(path, "".join(  # one in each chat
            f"UPDATE {table} SET {column} = {value} WHERE id = {key} || {n};"
            for n, column in enumerate(COLUMNS[table])
        ))  # fmt: skip
        with closing(ChatStore(path)) as store:
            page = ChatPage(ChatController(FakeEngine(), store))
            qtbot.addWidget(page)
            library = page.controller
            listed = [*library.conversations, *library.archived]
            assert len(listed) == NUM_CHATS, value
            for chat in listed:
                library.open(chat.id)
                assert len(library.current.messages) == 2 and library.current.path(), value
            assert len(library.search("question")) == NUM_CHATS
            library.close()


@pytest.mark.parametrize("parent", ["id", "'nobody'"])
def test_messages_without_a_way_to_the_first_are_shown(path: Path, parent: str) -> None:
    change(path, f"UPDATE messages SET parent_id = {parent} WHERE id != 'a1'")
    with closing(ChatStore(path)) as store:
        library = ChatController(FakeEngine(), store)
        library.open_message("c2", "b2")
        assert [m.id for m in library.current.path()] == ["a2", "b2"]
        library.open("c1")
        assert [m.id for m in library.current.path()] == ["a1", "b1"]
        library.close()


def test_a_view_in_place_of_a_table_is_skipped(path: Path) -> None:
    change(path, "DROP TABLE unsent; CREATE VIEW unsent AS SELECT 1 AS a;"
                 " DROP TABLE presets; CREATE VIEW presets AS SELECT 1 AS name;")  # fmt: skip
    with closing(sqlite3.connect(path)) as source:
        target = path.with_name("target.sqlite3")
        ChatStore(target).close()
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            found = Salvaged()
            salvage(source, copy, found)
    assert (found.conversations, found.messages) == (NUM_CHATS, 2 * NUM_CHATS)


def test_a_search_of_many_words_finds(path: Path) -> None:
    with closing(ChatStore(path)) as store:
        hits = store.search("question " * 2000 + "2 " * 2000)
        assert [hit.message_id for hit in hits] == ["a2"]


def test_the_search_uses_its_index(path: Path) -> None:
    asked: list[str] = []
    with closing(ChatStore(path)) as store:
        connection = store._now.reader
        connection.set_trace_callback(asked.append)
        store.search("question 2")
        connection.set_trace_callback(None)
        (sql,) = (text for text in asked if "MATCH" in text and text.startswith("SELECT c.id"))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert any("VIRTUAL TABLE INDEX" in line and ":M" in line for line in plan), plan
    assert not any(line.startswith("SCAN m") and "VIRTUAL" not in line for line in plan), plan


def test_a_cancelled_job_does_not_end_the_writer(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "file", lambda error: False)
    cancelled: Future[None] = writer.call(lambda: None)
    assert cancelled.cancel()
    after = writer.call(lambda: 5)
    writer.start()
    assert after.result(60) == 5
    writer.close()


def test_a_file_is_written_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to("elsewhere/file")
    for text in ("new", "replaced"):
        write_whole(link, text)
        assert link.is_symlink() and target.read_text() == text
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    with pytest.raises(OSError):
        write_whole(circle, "text")
    assert circle.is_symlink() and os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("line", ['{"t": "x", "k": "unloaded"}', '{"t": 1, "k": []}', "[]", "{"])
def test_errors_of_a_recording_have_no_words_of_python(line: str) -> None:
    with pytest.raises(ValueError) as caught:
        list(recording.decode(f"{line}\n".encode()))
    assert "line 1" in str(caught.value) and "Error" not in str(caught.value)
