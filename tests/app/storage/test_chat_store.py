"""The store of the chats: what was written is there, whatever ended the process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.storage import (
    NEW,
    TIMES,
    TOKENS,
    ChatStore,
    StorageCorruptError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageNewerError,
    StorageReadOnlyError,
    StoredConversation,
    StoredMessage,
    open_store,
)
from app.storage.database import MIGRATIONS, VERSION
from app.storage.records import put_conversation, put_message
from app.storage.search import contains, terms_of
from tests.tiers import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
CONVERSATION = StoredConversation("c1", "First chat", created=1.0, updated=1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    opened = ChatStore(tmp_path / "chats.sqlite3")
    yield opened
    opened.close()


def message(text: str, number: int = 1, **changes: object) -> StoredMessage:
    made = StoredMessage(f"m{number}", "c1", None, "user", text, created=float(number))
    return replace(made, **changes)  # type: ignore[arg-type]


@settings(max_examples=examples(25))
@given(
    texts=st.lists(TEXT, max_size=6),
    title=TEXT,
    prompt=TEXT,
    figures=st.none() | st.dictionaries(TEXT, st.integers() | st.floats(allow_nan=False) | TEXT),
)
def test_what_was_written_is_there_after_reopening(
    texts: list[str], title: str, prompt: str, figures: dict | None
) -> None:
    conversation = replace(
        CONVERSATION, title=title, system_prompt=prompt, sampling={"temperature": 0.5}, preset="P"
    )
    messages = [message(text, n, figures=figures) for n, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.sqlite3"
        store = ChatStore(path)
        store.add_messages(conversation, *messages).result(60)
        store.close()
        store = ChatStore(path)
        try:
            assert store.conversations() == [conversation]
            assert store.messages("c1") == messages
        finally:
            store.close()


@settings(max_examples=examples(25))
@given(texts=st.lists(TEXT, min_size=1, max_size=4), data=st.data())
def test_search_finds_every_part_of_every_text(texts: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ChatStore(Path(folder) / "chats.sqlite3")
        try:
            for n, text in enumerate(texts):
                conversation = replace(CONVERSATION, id=f"c{n}", title="")
                added = message(text, n, conversation_id=f"c{n}")
                store.add_messages(conversation, added).result(60)
            n = data.draw(st.integers(0, len(texts) - 1))
            start = data.draw(st.integers(0, len(texts[n])))
            part = texts[n][start : data.draw(st.integers(start, len(texts[n])))]
            found = {hit.conversation_id for hit in store.search(part)}
            if terms_of(part):
                assert f"c{n}" in found
            expected = {
                f"c{i}"
                for i, text in enumerate(texts)
                if terms_of(part) and all(contains(text, term) for term in terms_of(part))
            }
            assert found <= expected | {f"c{n}"}
        finally:
            store.close()


def test_search_needs_every_word_in_any_order_and_case(store: ChatStore) -> None:
    store.add_messages(CONVERSATION, message("Paged attention keeps KV in blocks")).result(60)
    (hit,) = store.search("BLOCKS pag kv")
    assert (hit.conversation_id, hit.message_id) == ("c1", "m1")
    assert [hit.snippet[a:b].lower() for a, b in hit.marks] == ["pag", "kv", "blocks"]
    assert store.search("blocks speculation") == []
    assert store.search('"') == [] and store.search("  ") == []


def test_search_tells_every_message_the_newest_first_and_the_title_before(
    store: ChatStore,
) -> None:
    texts = ("one watermark", "nothing", "two watermarks")
    many = [message(text, id=f"m{i}") for i, text in enumerate(texts, start=1)]
    named = replace(CONVERSATION, title="My watermark", title_is_automatic=False)
    store.add_messages(named, *many).result(60)
    assert [hit.message_id for hit in store.search("watermark")] == [None, "m3", "m1"]
    assert [hit.message_id for hit in store.search("watermark", limit=2)] == [None, "m3"]
    store.save_conversation(replace(named, title_is_automatic=True)).result(60)
    assert [hit.message_id for hit in store.search("watermark")] == ["m3", "m1"]


def test_search_hits_titles_and_forgets_what_was_deleted(store: ChatStore) -> None:
    store.add_messages(CONVERSATION, message("hello")).result(60)
    assert [hit.message_id for hit in store.search("first")] == [None]
    store.delete_conversation("c1").result(60)
    assert store.search("first") == store.search("hello") == []
    store.restore_conversation("c1").result(60)
    assert len(store.search("hello")) == 1
    store.delete_conversation("c1").result(60)
    store.purge_deleted("c1").result(60)
    store.restore_conversation("c1").result(60)
    assert store.conversations() == [] and store.messages("c1") == [] and store.search("he") == []


def test_a_text_that_changed_is_found_by_its_new_words_only(store: ChatStore) -> None:
    reply = message("", role="assistant", state="streaming")
    store.add_messages(CONVERSATION, reply).result(60)
    store.save_message(replace(reply, text="half a watermark")).result(60)
    assert store.search("watermark") == []  # indexed when finished
    store.save_message(replace(reply, text="a watermark", state="complete")).result(60)
    assert len(store.search("watermark")) == 1 and store.search("half") == []


def test_messages_are_added_with_their_conversation_or_not_at_all(store: ChatStore) -> None:
    wrong = message("x", conversation_id="unknown")
    assert store.add_messages(CONVERSATION, wrong).exception(60) is not None
    assert store.conversations() == []


def test_a_killed_process_loses_only_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    script = """
import sys, time
from pathlib import Path
from app.storage import ChatStore, StoredConversation, StoredMessage
store = ChatStore(Path(sys.argv[1]))
user = StoredMessage("m1", "c1", None, "user", "my question")
reply = StoredMessage("m2", "c1", "m1", "assistant", "the first half", "streaming")
store.add_messages(StoredConversation("c1", "t"), user, reply).result(60)
print("durable", flush=True)
time.sleep(600)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "durable\n"
        with pytest.raises(StorageLockedError, match="locked"):
            ChatStore(path)
        reading = open_store(path)  # a second window can read, and says that it does not save
        assert reading.problem is not None and "locked" in reading.problem.cause
        assert [m.text for m in reading.messages("c1")] == ["my question", "the first half"]
        reading.close()
    finally:
        child.kill()
        child.wait(60)
        child.stdout.close()
    store = ChatStore(path)
    try:
        assert [(m.text, m.state) for m in store.messages("c1")] == [
            ("my question", "complete"),
            ("the first half", "interrupted"),
        ]
        assert len(store.search("first half")) == 1
    finally:
        store.close()


def test_one_process_has_one_store(store: ChatStore) -> None:
    with pytest.raises(StorageLockedError):
        ChatStore(store.path)


def test_an_older_file_is_migrated_with_all_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MIGRATIONS[0])
        connection.execute(
            "INSERT INTO conversations VALUES('c1', 'Old', 1, '', '{\"seed\": 3}', 'P', 1, 2, NULL)"
        )
        connection.execute(
            "INSERT INTO messages VALUES(1, 'm1', 'c1', NULL, 'user', 'kept', 'complete', 0, 1,"
            " '{\"num_tokens\": 4}', NULL)"
        )
        connection.execute("INSERT INTO messages_fts(rowid, text) VALUES(1, 'kept')")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    store = ChatStore(path)
    try:
        (conversation,) = store.conversations()
        assert (conversation.title, conversation.sampling) == ("Old", {"seed": 3})
        assert not conversation.is_pinned and not conversation.is_archived
        (kept,) = store.messages("c1")
        assert (kept.text, kept.figures, kept.attachments) == ("kept", {"num_tokens": 4}, ())
        assert [hit.message_id for hit in store.search("kept")] == ["m1"]
        store.save_packed(TOKENS, "m1", lambda: b"packed").result(60)
        assert store.packed(TOKENS, "m1") == b"packed"
        assert store.messages_with(TOKENS, "c1") == {"m1"}
        store.save_packed(TIMES, "m1", lambda: b"times").result(60)
        assert store.packed(TIMES, "m1") == b"times"
        assert store.messages_with(TIMES, "c1") == {"m1"}
    finally:
        store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_tokens_go_with_their_message_and_need_one(store: ChatStore) -> None:
    store.save_packed(TOKENS, "m1", lambda: b"early").result(60)  # no such message: no error either
    assert store.packed(TOKENS, "m1") is None
    store.add_messages(CONVERSATION, message("hello")).result(60)
    store.save_packed(TOKENS, "m1", lambda: b"one").result(60)
    store.save_packed(TOKENS, "m1", lambda: b"two").result(60)
    store.save_message(message("hello there")).result(60)
    assert store.packed(TOKENS, "m1") == b"two"
    assert store.has_any("c1", []) and store.has_any("c9", ["m0", "m1"])
    assert not store.has_any("c9", ["m0"])
    store.delete_conversation("c1").result(60)
    store.purge_deleted("c1").result(60)
    assert store.packed(TOKENS, "m1") is None


def test_what_is_written_is_kept_until_it_is_sent_and_goes_with_its_chat(store: ChatStore) -> None:
    store.save_unsent(NEW, "Hel").result(60)
    store.save_unsent("c1", "for a chat that is not stored").result(60)  # no error either
    store.save_unsent(NEW, "Hello").result(60)
    assert store.unsent() == {NEW: "Hello"}
    store.add_messages(CONVERSATION, message("from elsewhere")).result(60)
    assert store.unsent() == {NEW: "Hello"}
    store.add_messages(replace(CONVERSATION, id="c2"), unsent="").result(60)  # "Hello" was sent
    assert store.unsent() == {}
    store.save_unsent(NEW, "Another").result(60)
    store.save_unsent("c1", "Second").result(60)
    store.add_messages(replace(CONVERSATION, id="c2"), unsent="rest").result(60)
    assert store.unsent() == {NEW: "Another", "c1": "Second", "c2": "rest"}
    store.save_unsent("c2", "").result(60)
    store.delete_conversation("c1").result(60)
    assert store.unsent() == {NEW: "Another", "c1": "Second"}  # it can be restored
    store.purge_deleted("c1").result(60)
    store.save_unsent("c1", "late").result(60)
    assert store.unsent() == {NEW: "Another"}


def test_what_was_written_stays_where_the_message_of_it_cannot_be_stored(store: ChatStore) -> None:
    store.save_unsent(NEW, "Hello").result(60)
    wrong = message("Hello", conversation_id="none")
    assert store.add_messages(CONVERSATION, wrong, unsent="").exception(60) is not None
    assert store.unsent() == {NEW: "Hello"}


def test_a_file_of_before_the_unsent_texts_gets_room_for_them(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(MIGRATIONS[:4]) + "PRAGMA user_version = 4;")
        put_conversation(connection, CONVERSATION)
        put_message(connection, message("hello"))
        connection.commit()
    with closing(ChatStore(path)) as store:
        assert store.unsent() == {} and len(store.messages("c1")) == 1
        store.save_unsent("c1", "and").result(60)
        assert store.unsent() == {"c1": "and"}


def test_a_file_of_before_the_times_keeps_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(MIGRATIONS[:3]) + "PRAGMA user_version = 3;")
        put_conversation(connection, CONVERSATION)
        put_message(connection, message("hello"))
        connection.execute("INSERT INTO reply_tokens VALUES('m1', 'packed')")
        connection.commit()
    with closing(ChatStore(path)) as store:
        assert store.packed(TOKENS, "m1") == "packed" and store.packed(TIMES, "m1") is None
        store.save_packed(TIMES, "m1", lambda: b"times").result(60)
        store.delete_conversation("c1").result(60)
        store.purge_deleted("c1").result(60)
        assert store.packed(TIMES, "m1") is None and store.packed(TOKENS, "m1") is None


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    ChatStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 3}")
    connection.close()
    with pytest.raises(StorageNewerError, match=f"format {VERSION + 3}"):
        ChatStore(path)
    store = open_store(path)
    assert store.problem is not None and store.spoiled == path and store.conversations() == []
    store.close()


@pytest.mark.parametrize("version", [-1, -544_735_227])
def test_a_file_of_no_format_is_damaged(tmp_path: Path, version: int) -> None:
    path = tmp_path / "chats.sqlite3"
    ChatStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageCorruptError, match=f"format {version}"):
        ChatStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "truncated"])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "chats.sqlite3"
    store = ChatStore(path)
    store.add_messages(CONVERSATION, message("x" * 9000)).result(60)
    store.close()
    content = b"no database " * 400 if damage == "garbage" else path.read_bytes()[:5000]
    path.write_bytes(content)
    with pytest.raises(StorageCorruptError, match="KiB"):
        ChatStore(path)
    assert path.read_bytes() == content


def test_a_full_disk_is_reported_and_writing_goes_on_when_there_is_room(store: ChatStore) -> None:
    limited = store._writer.submit(
        lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchone()
    )
    limited.result(60)
    error = store.add_messages(CONVERSATION, message("x" * 200_000)).exception(60)
    assert isinstance(error, StorageFullError) and " free in " in error.cause
    assert store.conversations() == []
    store._writer.submit(
        lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    ).result(60)
    store.add_messages(CONVERSATION, message("x" * 200_000)).result(60)
    assert len(store.messages("c1")) == 1


def test_a_file_that_cannot_be_written_is_reported(store: ChatStore) -> None:
    store._writer._connection.execute("PRAGMA query_only = 1")
    error = store.add_messages(CONVERSATION, message("x")).exception(60)
    assert isinstance(error, StorageReadOnlyError) and str(store.path) in error.cause
    assert error.remedy


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError) as caught:
        ChatStore(tmp_path / "file" / "chats.sqlite3")
    assert "file" in str(caught.value)


def test_the_data_folder_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERDECK_DATA_DIR", str(tmp_path / "elsewhere"))
    store = ChatStore()
    assert store.path.parent == tmp_path / "elsewhere"
    store.close()
    assert store.add_messages(CONVERSATION).exception(60) is not None  # closed, and says so


def test_presets_are_kept(store: ChatStore) -> None:
    store.save_preset("Mine", {"temperature": 0.2}).result(60)
    store.save_preset("Mine", {"temperature": 0.3}).result(60)
    assert store.presets() == {"Mine": {"temperature": 0.3}}
    store.delete_preset("Mine").result(60)
    assert store.presets() == {}


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite3")
    started = time.perf_counter()
    futures = [store.add_messages(CONVERSATION, message("x", n)) for n in range(50)]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert time.perf_counter() - started < 60
