"""The window opens whatever has happened to the file of the chats, and nothing in it is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app import paths
from app.chat.controller import ChatController
from app.chat.page import ChatPage
from app.storage import ChatStore, open_store
from tests.app.fake_engine import FakeEngine
from widgets.chat.conversation_list import ConversationList
from widgets.chat.records import ConversationRecord

NUM_CHATS = 10_000


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
    page = ChatPage(ChatController(engine, store))
    qtbot.addWidget(page)
    page.show()
    text = page.problem_notice.text()
    assert not page.problem_notice.isHidden() and said in text
    assert "until this window closes" in text
    page.send("Hello")
    qtbot.waitUntil(lambda: bool(engine.order))
    engine.finish("Hello to you")
    assert page.controller.current.last is not None
    assert page.controller.current.last.text == "Hello to you"
    page.controller.close()
    store.close()
    assert path.read_bytes() == before


def records(count: int, title: str = "Chat") -> list[ConversationRecord]:
    return [ConversationRecord(f"c{n}", f"{title} {n}", "14:05") for n in range(count)]


def test_of_ten_thousand_conversations_only_what_changed_is_touched(qtbot: QtBot) -> None:
    shown = ConversationList()
    qtbot.addWidget(shown)
    shown.resize(240, 600)
    shown.show()
    listed = records(NUM_CHATS)
    shown.set_conversations(listed, "c7000")
    assert shown.selected == "c7000"
    changed: list[int] = []
    shown._model.dataChanged.connect(lambda first, last: changed.append(first.row()))
    listed[9000] = listed[9000]._replace(title="Renamed")
    shown.set_conversations(listed, "c7000")
    shown.update_conversation(listed[5]._replace(detail="generating"))
    assert changed == [9000, 5]
    shown.set_conversations(list(reversed(listed)), "c1")
    assert shown.selected == "c1" and shown.view.currentIndex().row() == NUM_CHATS - 2
