"""The window during the recovery of its chats: it goes on, and nothing that it shows is lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.features.chat.controller import ChatController
from app.features.chat.conversation import Conversation, connected
from app.features.chat.file_actions import RECOVER, REPLACE
from app.features.chat.labels import branch_records
from app.features.chat.page import ChatPage
from app.features.chat.recovery_work import KEY, RecoveryWork
from app.storage import NEW, ChatStore, StorageError, StoredMessage, open_store
from app.storage import recovery as recovering
from app.storage.errors import StorageCorruptError
from app.window.progress import WorkArea
from tests.app.fake_engine import FakeEngine
from tests.app.storage.damage import (
    NUM_CHATS,
    NUM_MESSAGES,
    Gate,
    damaged,
    fill,
    gate,
    pages_of,
    recovered,
    spoil,
)
from tests.tiers import first_fast

__all__ = ["damaged", "gate"]


def test_the_window_opens_during_a_recovery_and_keeps_what_is_written(
    qtbot: QtBot, gate: Gate, damaged: Path
) -> None:
    before = damaged.read_bytes()
    store, engine, area = open_store(), FakeEngine(), WorkArea()
    page = ChatPage(ChatController(engine, store))
    for widget in (page, area):
        qtbot.addWidget(widget)
        widget.show()
    library = page.controller
    work = RecoveryWork(library, area, page)
    gate.wait()
    assert [w.key for w in area.works] == [KEY] and library.recovery is not None
    assert not library.can_replace_file
    with pytest.raises(StorageError):
        store.start_new_file().result(60)
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    gate.opened.set()
    qtbot.waitUntil(lambda: library.recovery is None and not area.works, timeout=60_000)
    qtbot.waitUntil(lambda: len(library.conversations) == NUM_CHATS + 1, timeout=60_000)
    assert store.problem is not None and f"{NUM_CHATS * NUM_MESSAGES:,}" in store.problem.cause
    library.open("c3")
    assert len(library.current.messages) == NUM_MESSAGES and work is not None
    qtbot.mouseClick(page.problem_notice.findChild(QPushButton), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: library.saver.problem is None, timeout=60_000)
    library.close()
    store.close()
    aside = damaged.with_name("chats-kept-1.sqlite3")
    assert aside.read_bytes() == before
    with closing(ChatStore(damaged)) as again:
        assert len(again.conversations()) == NUM_CHATS + 1


def test_a_cancelled_recovery_can_be_started_again(qtbot: QtBot, gate: Gate, damaged: Path) -> None:
    before = damaged.read_bytes()
    store = open_store()
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    page.show()
    library = page.controller
    gate.wait()
    assert library.recovery is not None
    library.recovery.cancel()
    gate.opened.set()
    qtbot.waitUntil(lambda: library.can_recover, timeout=60_000)
    again = page.problem_notice.findChild(QPushButton)
    assert library.conversations == [] and again is not None
    qtbot.waitUntil(lambda: again.text() == RECOVER, timeout=60_000)
    qtbot.mouseClick(again, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(library.conversations) == NUM_CHATS, timeout=60_000)
    assert not library.can_recover and library.can_replace_file
    library.close()
    store.close()
    assert damaged.read_bytes() == before


def found_damaged(store: ChatStore) -> None:
    """What a write does that meets a damaged page."""
    error = StorageCorruptError("The chat file is damaged.", "")
    assert store._writer.call(lambda: store._recover(error)).result(60)


def test_a_reply_that_goes_on_is_saved_where_damage_is_found(
    qtbot: QtBot, gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "chats.sqlite3"
    fill(path)
    store, engine = open_store(path), FakeEngine()
    page = ChatPage(ChatController(engine, store))
    qtbot.addWidget(page)
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    library = page.controller
    chat = library.current.id
    store.flush()
    found_damaged(store)
    gate.wait()
    engine.finish("Hello to you")
    qtbot.waitUntil(lambda: not library.saver.unsaved, timeout=60_000)
    assert [m.text for m in store.messages(chat)] == ["Hello", "Hello to you"]
    recovery = store.recovery
    assert recovery is not None
    recovery.cancel()
    gate.opened.set()
    recovery.ended.result(60)
    library.replace_file().result(60)
    library.close()
    store.close()
    with closing(ChatStore(path)) as again:
        assert [m.text for m in again.messages(chat)] == ["Hello", "Hello to you"]


def test_a_chat_that_was_opened_before_its_recovery_shows_its_messages(
    qtbot: QtBot, gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "chats.sqlite3"
    fill(path)
    store = open_store(path)
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    library = page.controller
    found_damaged(store)
    gate.wait()
    library.open("c3")  # is not there yet
    assert library.recovery is not None and library.current.id != "c3"
    library.recovery.cancel()
    gate.opened.set()
    qtbot.waitUntil(lambda: library.can_recover, timeout=60_000)
    library.open("c3")
    assert library.current.id == "c3" and not library.current.messages
    gate.opened.clear()
    library.recover()
    qtbot.waitUntil(lambda: library.recovery is not None)
    library._read_again()  # what a late notice of the first one's end does
    gate.opened.set()
    qtbot.waitUntil(lambda: len(library.current.messages) == NUM_MESSAGES, timeout=60_000)
    library.close()
    store.close()


@pytest.fixture
def page(qtbot: QtBot, tmp_path: Path) -> Iterator[ChatPage]:
    """Of a file with chats, the fourth of which is open."""
    path = tmp_path / "chats.sqlite3"
    fill(path)
    with closing(ChatStore(path)) as store:
        store.save_unsent(NEW, "left").result(60)
    store = open_store(path)
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    page.controller.open("c3")
    yield page
    page.controller.close()
    store.close()


def renewed(qtbot: QtBot, page: ChatPage) -> Path:
    """Save to a new file; its path."""
    library = page.controller
    library.replace_file().result(60)
    library.close()
    library._store.close()
    return library._store.path


def test_what_the_window_shows_is_in_the_new_file_although_its_pages_are_lost(
    qtbot: QtBot, page: ChatPage
) -> None:
    library, store = page.controller, page.controller._store
    messages = [m.record() for m in library.current.path()]
    leaves = sorted(pages_of(store.path)["messages"])[1:]
    spoil(store.path, *leaves[len(leaves) // 8 : len(leaves) // 2])
    found_damaged(store)
    recovered(store)
    library.rename("c3", "Renamed")
    qtbot.waitUntil(lambda: library.saver.problem is not None)
    recovery = store.recovery
    assert recovery is not None and recovery.found.messages < NUM_CHATS * NUM_MESSAGES
    with closing(ChatStore(renewed(qtbot, page))) as again:
        assert connected(again.messages("c3")) == messages
        assert sum(len(again.messages(c.id)) for c in again.conversations()) >= NUM_MESSAGES


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_message_sent_during_a_cancelled_recovery_follows_its_parent(
    qtbot: QtBot, gate: Gate, page: ChatPage, is_heard: bool
) -> None:
    """Also where the window has not heard of the recovery yet."""
    library, store = page.controller, page.controller._store
    found_damaged(store)
    gate.wait()
    late = StoredMessage("late", "c3", f"m3.{NUM_MESSAGES - 1}", "user", "sent meanwhile")
    store.add_messages(library.current.record(), late).result(60)  # before the window hears of it
    assert library.recovery is not None
    library.recovery.cancel()
    gate.opened.set()
    library.rename("c3", "Renamed")
    store.recovery.join()
    if is_heard:
        qtbot.waitUntil(lambda: library.can_recover, timeout=60_000)
    with closing(ChatStore(renewed(qtbot, page))) as again:
        assert again.messages("c3")[0].id == "late"
        chat = Conversation(id="c3")
        chat.load(again.messages("c3"))
        assert [m.id for m in chat.path()] == [*(f"m3.{n}" for n in range(NUM_MESSAGES)), "late"]
        (branch,) = branch_records(chat)
        assert branch.num_messages == NUM_MESSAGES + 1


def test_recovered_presets_and_unsent_text_are_shown(
    qtbot: QtBot, gate: Gate, damaged: Path
) -> None:
    with closing(sqlite3.connect(damaged)) as connection:
        connection.execute("INSERT INTO unsent VALUES('', 'left')")
        connection.commit()
    store = open_store()
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    gate.wait()
    page.composer.set_text("typed meanwhile")
    page.draft.keep()
    with qtbot.waitSignal(page.controller.presets_changed, timeout=60_000):
        gate.opened.set()
    assert "Mine" in [preset.name for preset in page.controller.presets]
    assert page.composer.text == "left\ntyped meanwhile"
    page.draft.keep()
    store.flush()
    assert store.unsent()[NEW] == "left\ntyped meanwhile"
    page.controller.close()
    store.close()


@pytest.mark.parametrize(
    "error", first_fast(1, [OSError(28, "No space left"), MemoryError(),
                            sqlite3.OperationalError("full"), RuntimeError()]),
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failed_recovery_can_be_started_again(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, damaged: Path, error: Exception
) -> None:
    def fail(*given):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(recovering, "salvaged", fail)
        store = open_store()
        recovered(store)
    again(qtbot, store)


def test_a_recovery_whose_result_cannot_be_used_can_be_started_again(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, damaged: Path, gate: Gate
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("full")

    store = open_store()
    gate.wait()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_pending", fail)
        gate.opened.set()
        recovered(store)
    again(qtbot, store)


def again(qtbot: QtBot, store: ChatStore) -> None:
    """The page of a failed recovery offers another one, which succeeds."""
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    page.show()
    library, button = page.controller, page.problem_notice.findChild(QPushButton)
    assert library.can_recover and library.conversations == []
    assert button is not None and button.text() == RECOVER
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(library.conversations) == NUM_CHATS, timeout=60_000)
    assert not library.can_recover and library.can_replace_file
    library.close()
    store.close()


def test_after_a_recovery_that_fails_again_the_chats_go_to_a_new_file(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, damaged: Path
) -> None:
    def fail(*given):
        raise OSError(28, "No space left")

    monkeypatch.setattr(recovering, "salvaged", fail)
    store = open_store()
    recovered(store)
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    page.show()
    library, button = page.controller, page.problem_notice.findChild(QPushButton)
    assert button is not None and button.text() == RECOVER
    started, ended = threading.Event(), threading.Event()
    store._writer.call(lambda: started.wait(60))  # the writer is busy: the recovery begins later
    monkeypatch.setattr(recovering, "salvaged", lambda *given: ended.wait(60) and fail())
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert button.isHidden() and not library.can_replace_file and not store.is_recovering
    started.set()
    store.flush()
    assert store.is_recovering and not library.can_replace_file
    ended.set()
    qtbot.waitUntil(lambda: button.text() == REPLACE and not button.isHidden(), timeout=60_000)
    assert library.can_replace_file and not library.can_recover
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: library.saver.problem is None, timeout=60_000)
    library.close()
    store.close()


def test_what_was_sent_when_damage_is_found_is_not_given_back(qtbot: QtBot, page: ChatPage) -> None:
    store = page.controller._store
    page.new_chat()
    assert page.composer.text == "left"
    found_damaged(store)
    recovered(store)
    with qtbot.waitSignal(page.controller.presets_changed, timeout=60_000):
        page.composer.send()
    assert page.composer.text == ""
    store.flush()
    assert store.unsent() == {}


def test_a_new_file_is_made_while_the_window_goes_on(qtbot: QtBot, page: ChatPage) -> None:
    library, store = page.controller, page.controller._store
    found_damaged(store)
    recovered(store)
    library.saver.report(None)
    opened = threading.Event()
    store._writer.call(lambda: opened.wait(60))  # other work comes first
    ended: list[bool] = []
    page.recovery.begin(ended.append)
    page.recovery.begin(ended.append)  # a second click
    assert store.problem is not None
    opened.set()
    qtbot.waitUntil(lambda: ended == [True, True], timeout=60_000)
    assert library.saver.problem is None
    assert [p.name for p in store.path.parent.glob("*-kept-*")] == ["chats-kept-1.sqlite3"]
