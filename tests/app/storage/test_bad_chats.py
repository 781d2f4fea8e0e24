"""The window opens whatever has happened to the file of the chats, and nothing in it is lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.features.chat import saving
from app.features.chat.controller import ChatController
from app.features.chat.file_actions import _renewed_text
from app.features.chat.files import parse
from app.features.chat.page import ChatPage
from app.storage import (
    ChatStore,
    StorageReadOnlyError,
    StoredConversation,
    StoredMessage,
    database,
    open_store,
)
from tests.app.fake_engine import FakeEngine
from tests.app.storage.test_unusable_files import full_disk, recovered


def damage(path: Path) -> None:
    path.write_bytes(b"this was a database" * 500)


def make_newer(path: Path) -> None:
    ChatStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()


@pytest.mark.parametrize(("spoil", "said"), [(damage, "damaged"), (make_newer, "newer")])
def test_a_file_that_cannot_be_used_is_left_alone_and_one_can_chat(
    qtbot: QtBot, spoil: Callable[[Path], None], said: str
) -> None:
    path = paths.chats_file()
    spoil(path)
    before = path.read_bytes()
    store, engine = open_store(), FakeEngine()
    recovered(store)
    page = ChatPage(ChatController(engine, store))
    qtbot.addWidget(page)
    page.show()
    text = page.problem_notice.text()
    assert not page.problem_notice.isHidden() and said in text
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    assert page.controller.current.last is not None
    assert page.controller.current.last.text == "Hello to you"
    page.controller.close()
    store.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("spoil", [damage, make_newer])
def test_the_file_is_kept_aside_and_what_was_written_is_saved(
    qtbot: QtBot, spoil: Callable[[Path], None]
) -> None:
    path = paths.chats_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name("chats-kept-2.sqlite3")
    path.with_name("chats-kept-1.sqlite3").write_bytes(b"from last year")
    spoil(path)
    before = path.read_bytes()
    store, engine = open_store(), FakeEngine()
    recovered(store)
    page = ChatPage(ChatController(engine, store))
    qtbot.addWidget(page)
    page.show()
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    qtbot.mouseClick(page.problem_notice.findChild(QPushButton), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(page.problem_notice.isHidden, timeout=60_000)
    assert page.controller.saver.problem is None
    said = page.toast.findChild(QLabel)
    assert said is not None and aside.name in said.text()
    assert store.path == path and aside.read_bytes() == before
    engine.finish("Hello to you")  # it was under way
    page.controller.close()
    store.close()
    with closing(ChatStore(path)) as again:
        kept = again.conversations()
        assert [c.title for c in kept] == ["Hello"]
        assert [m.text for m in again.messages(kept[0].id)] == ["Hello", "Hello to you"]
    assert path.with_name("chats-kept-1.sqlite3").read_bytes() == b"from last year"


def test_where_it_cannot_be_kept_aside_everything_is_as_before(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = paths.chats_file()
    damage(path)
    before = path.read_bytes()

    def refuse(path: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(database, "set_aside", refuse)
    with closing(open_store()) as store:
        recovered(store)
        stored = StoredConversation("c1", "Hello")
        store.add_messages(stored, StoredMessage("m1", "c1", None, "user", "Hello")).result(10)
        with pytest.raises(StorageReadOnlyError, match=str(path.name)):
            store.start_new_file().result(60)
        assert store.problem is not None and store.spoiled == path
        store.save_conversation(stored).result(10)
        assert [m.text for m in store.messages("c1")] == ["Hello"]
    assert path.read_bytes() == before
    left = [p.name for p in path.parent.iterdir() if "new" in p.name or "kept" in p.name]
    assert left == []


def test_whoever_closes_the_window_is_asked(qtbot: QtBot) -> None:
    path = paths.chats_file()
    damage(path)
    store, engine, window = open_store(), FakeEngine(), QWidget()
    recovered(store)
    page = ChatPage(ChatController(engine, store), window)
    qtbot.addWidget(window)
    window.show()
    assert page.recovery.may_close(window)  # nothing was written
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    assert not page.recovery.may_close(window)
    assert page.recovery.dialog is not None
    page.recovery.dialog.stay.click()
    assert page.recovery.dialog is None and window.isVisible()
    assert not page.recovery.may_close(window)
    page.recovery.dialog.save.click()
    qtbot.waitUntil(lambda: not window.isVisible(), timeout=60_000)
    assert page.recovery.may_close(window)
    page.controller.close()
    store.close()
    with closing(ChatStore(path)) as again:
        assert [c.title for c in again.conversations()] == ["Hello"]


def test_a_window_stays_where_that_is_chosen_while_a_new_file_is_made(qtbot: QtBot) -> None:
    damage(paths.chats_file())
    store, engine, window = open_store(), FakeEngine(), QWidget()
    recovered(store)
    page = ChatPage(ChatController(engine, store), window)
    qtbot.addWidget(window)
    window.show()
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    assert not page.recovery.may_close(window) and page.recovery.dialog is not None
    opened = threading.Event()
    store._writer.call(lambda: opened.wait(60))  # other work comes first
    page.recovery.dialog.save.click()
    page.recovery.dialog.stay.click()
    opened.set()
    qtbot.waitUntil(lambda: page.controller.saver.problem is None, timeout=60_000)
    qtbot.wait(10)
    assert window.isVisible() and page.recovery.may_close(window)
    page.controller.close()
    store.close()


def test_an_attempt_of_a_cancelled_dialog_leaves_the_next_one(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(database, "set_aside", refuse)
    damage(paths.chats_file())
    store, engine, window = open_store(), FakeEngine(), QWidget()
    recovered(store)
    page = ChatPage(ChatController(engine, store), window)
    qtbot.addWidget(window)
    window.show()
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    assert not page.recovery.may_close(window) and page.recovery.dialog is not None
    page.recovery.dialog.save.click()
    page.recovery.dialog.stay.click()
    assert not page.recovery.may_close(window) and page.recovery.dialog is not None
    second = page.recovery.dialog
    said = page.toast.findChild(QLabel)
    assert said is not None
    qtbot.waitUntil(lambda: "permission" in said.text())
    assert page.recovery.dialog is second
    second.save.click()
    qtbot.waitUntil(lambda: page.recovery.dialog is None)
    assert window.isVisible()
    page.controller.close()
    store.close()


@pytest.mark.parametrize("has_companion", [False, True])
def test_a_damaged_file_that_was_moved_away_is_replaced(has_companion: bool) -> None:
    path = paths.chats_file()
    damage(path)
    with closing(open_store()) as store:
        recovered(store)
        store.add_messages(StoredConversation("c1", "Hello")).result(10)
        path.rename(path.with_name("moved.sqlite3"))
        companion = path.with_name(f"{path.name}-wal")
        if has_companion:
            companion.write_bytes(b"its last changes")
        renewed = store.start_new_file().result(60)
        assert renewed.aside is None and renewed.num_conversations == 1
        assert store.problem is None and "old file" not in _renewed_text(renewed)
    with closing(ChatStore(path)) as again:
        assert [c.id for c in again.conversations()] == ["c1"]
    kept = [p.read_bytes() for p in path.parent.glob("*-kept-1.sqlite3-wal")]
    assert kept == [b"its last changes"] * has_companion


def test_what_was_written_beside_a_locked_file_is_not_lost_without_asking(
    qtbot: QtBot, tmp_path: Path
) -> None:
    path = paths.chats_file()
    with closing(ChatStore(path)) as theirs:
        stored = StoredConversation("c1", "Of the other window")
        theirs.add_messages(stored, StoredMessage("m1", "c1", None, "user", "Before")).result(10)
        store, engine, window = open_store(), FakeEngine(), QWidget()
        page = ChatPage(ChatController(engine, store), window)
        qtbot.addWidget(window)
        window.show()
        assert page.recovery.may_close(window)  # what can be read is the other window's own
        page.send("Hello")
        qtbot.waitUntil(lambda: bool(engine.order))
        engine.finish("Hello to you")
        assert not page.recovery.may_close(window) and page.recovery.dialog is not None
        text = page.recovery.dialog.text.text()
        assert "1 unsaved" in text and "is locked" in text

        def choose(file: Path) -> None:
            assert page.recovery.dialog is not None
            page.recovery.dialog.save.click()
            found = page.findChildren(QFileDialog)[-1]
            found.fileSelected.emit(str(file))
            found.close()

        choose(tmp_path / "nowhere" / "copy.json")
        qtbot.waitUntil(lambda: "nowhere" in page.recovery.dialog.text.text())
        assert window.isVisible()
        choose(tmp_path / "copy.json")
        qtbot.waitUntil(lambda: not window.isVisible())
        page.controller.close()
        store.close()
    (bundle,) = parse((tmp_path / "copy.json").read_text(encoding="utf-8"))
    assert [m.text for m in bundle.messages] == ["Hello", "Hello to you"]


def test_what_a_full_disk_did_not_take_is_not_lost_without_asking(
    qtbot: QtBot, tmp_path: Path
) -> None:
    store, engine, window = open_store(), FakeEngine(), QWidget()
    page = ChatPage(ChatController(engine, store), window)
    qtbot.addWidget(window)
    window.show()
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    assert page.recovery.may_close(window)
    pages = store._writer._connection.execute("PRAGMA page_count").fetchone()[0]
    store._writer._connection.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full now
    answer = "Hello to you. " * 20_000
    engine.finish(answer)
    assert not page.recovery.may_close(window) and page.recovery.dialog is not None
    assert " free in " in page.recovery.dialog.text.text()
    page.recovery.dialog.save.click()
    copy = tmp_path / "copy.json"
    page.findChildren(QFileDialog)[-1].fileSelected.emit(str(copy))
    qtbot.waitUntil(lambda: not window.isVisible())
    (bundle,) = parse(copy.read_text(encoding="utf-8"))
    assert [m.text for m in bundle.messages] == ["Hello", answer]
    page.recovery.dialog.stay.click()
    store._writer._connection.execute("PRAGMA max_page_count = 1000000")  # room was made
    assert page.recovery.may_close(window)
    page.controller.close()
    store.close()


def test_saving_resumes_by_itself(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "RESUME_INTERVAL_MS", 50)
    with full_disk():
        store, engine = open_store(), FakeEngine()
        page = ChatPage(ChatController(engine, store))
        qtbot.addWidget(page)
        page.show()
        assert not page.problem_notice.isHidden()
        page.send("Hello")
        qtbot.waitUntil(lambda: bool(engine.order))
        engine.finish("Hello to you")
    qtbot.waitUntil(lambda: page.problem_notice.isHidden(), timeout=20_000)
    assert page.controller.saver.problem is None and page.controller.unsaved_chats == []
    page.controller.close()
    store.close()
    with closing(ChatStore(paths.chats_file())) as again:
        (kept,) = again.conversations()
        assert [m.text for m in again.messages(kept.id)] == ["Hello", "Hello to you"]


def test_what_cannot_be_saved_at_once_is_saved_later(qtbot: QtBot) -> None:
    store = open_store()
    controller = ChatController(FakeEngine(), store)
    with full_disk():
        controller.save_preset("Mine")
        qtbot.waitUntil(lambda: controller.saver.problem is not None)
        assert controller.saver.problem.kind == "StorageFullError"
    qtbot.waitUntil(lambda: controller.saver.problem is None, timeout=20_000)
    controller.close()
    store.close()
    with closing(ChatStore(paths.chats_file())) as again:
        assert list(again.presets()) == ["Mine"]
