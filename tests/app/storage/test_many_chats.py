"""Ten thousand chats: work is in proportion to what is seen or has changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.features.chat.controller import ChatController
from app.features.chat.page import ChatPage
from app.storage import ChatStore, StoredConversation, StoredMessage
from app.storage.records import put_conversation, put_message
from tests.app.fake_engine import FakeEngine
from widgets.chat.conversation_list import ConversationList
from widgets.chat.records import ConversationRecord

NUM_CHATS = 10_000


def records(count: int, title: str = "Chat") -> list[ConversationRecord]:
    return [ConversationRecord(f"c{n}", f"{title} {n}", "14:05") for n in range(count)]


def test_of_ten_thousand_conversations_only_what_changed_is_touched(qtbot: QtBot) -> None:
    shown = ConversationList()
    qtbot.addWidget(shown)
    shown.resize(240, 600)
    shown.show()
    listed = records(NUM_CHATS)

    def show(records: list[ConversationRecord], current: str) -> None:
        keys = [(record.id, record.hit) for record in records]
        shown.set_rows(keys, records.__getitem__, current)

    show(listed, "c7000")
    assert shown.selected == "c7000"
    assert shown._model.index(9000).data() == "Chat 9000"  # it was looked at
    changed: list[int] = []
    shown._model.dataChanged.connect(lambda first, last: changed.append(first.row()))
    listed[9000] = listed[9000]._replace(title="Renamed")
    show(listed, "c7000")
    shown.update_conversation(listed[5]._replace(detail="generating"))
    assert changed == [9000, 5]
    show(listed[::-1], "c1")
    assert shown.selected == "c1" and shown.view.currentIndex().row() == NUM_CHATS - 2


def test_of_ten_thousand_conversations_those_in_view_are_made(qtbot: QtBot) -> None:
    listed, made = records(NUM_CHATS), []

    def record_of(row: int) -> ConversationRecord:
        made.append(row)
        return listed[row]

    shown = ConversationList()
    qtbot.addWidget(shown)
    shown.resize(240, 600)
    shown.show()
    shown.set_rows([(record.id, record.hit) for record in listed], record_of, "c7000")
    qtbot.waitUntil(lambda: bool(made), timeout=10_000)
    shown.grab()
    assert shown.selected == "c7000" and 7000 in made
    assert len(set(made)) < 100
    shown.select("c9999")
    shown.grab()
    assert made[-1] > 9900 and len(set(made)) < 200


def test_a_chat_page_of_ten_thousand_shows_opens_and_finds_all(
    qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "chats.sqlite3"
    ChatStore(path).close()
    with sqlite3.connect(path) as connection:
        for n in range(NUM_CHATS):
            conversation = StoredConversation(f"c{n}", f"Chat {n}", updated=1e9 + n)
            put_conversation(connection, conversation)
        put_message(connection, StoredMessage("m0", "c0", None, "user", "the oldest pear"))
    connection.close()
    store = ChatStore(path)
    page = ChatPage(ChatController(FakeEngine(), store))
    qtbot.addWidget(page)
    page.resize(900, 640)
    page.show()
    try:
        assert len(page.list.records) == NUM_CHATS
        assert [r.title for r in page.list.records[:2]] == ["Chat 9999", "Chat 9998"]
        for wanted, title in (("pear", "Chat 0"), ("chat 7003", "Chat 7003")):
            page.list.search.setText(wanted)
            qtbot.waitUntil(lambda t=title: [r.title for r in page.list.records] == [t])
        page.list.search.clear()
        qtbot.waitUntil(lambda: len(page.list.records) == NUM_CHATS)
        page.controller.rename("c7003", "Another name")
        assert page.list.records[NUM_CHATS - 1 - 7003].title == "Another name"
        page.controller.set_pinned("c5", True)
        assert page.list.records[0].title == "Chat 5"
    finally:
        page.controller.close()
        store.close()
