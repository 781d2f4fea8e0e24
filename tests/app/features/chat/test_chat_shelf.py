"""Chats that are pinned on top, and chats that are put away."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from tests.app.chat_fixtures import Chat, chat, chat_in

__all__ = ["chat"]


def two(chat: Chat) -> tuple[str, str]:
    """Two chats; ids of the older and the newer."""
    chat.ask("One", "1")
    older = chat.controller.current.id
    chat.page.new_chat()
    chat.ask("Two", "2")
    return older, chat.controller.current.id


def test_a_pinned_chat_stays_on_top_also_after_reopening(
    chat: Chat, qtbot: QtBot, tmp_path: Path
) -> None:
    older, _ = two(chat)
    chat.page.list.pin_requested.emit(older, True)
    assert chat.titles == ["One", "Two"] and chat.page.list.records[0].is_pinned
    chat.page.new_chat()
    chat.ask("Three", "3")
    assert chat.titles == ["One", "Three", "Two"]
    chat.settle()
    chat.controller.close()
    chat.store.close()
    with chat_in(tmp_path) as again:
        assert again.titles == ["One", "Three", "Two"]
        again.controller.open(older)
        again.page.toggle_pinned()
        assert again.titles == ["Three", "Two", "One"]


def test_an_archived_chat_leaves_the_list_and_can_come_back(chat: Chat) -> None:
    _, newer = two(chat)
    assert chat.page.list.archive.isHidden()
    chat.page.toggle_archived()
    chat.settle()
    assert chat.titles == ["One"] and chat.texts == ["One", "1"]
    assert "“Two”" in chat.page.toast.text()
    assert chat.page.list.archive.text() == "Archived    1"
    chat.page.list.archive.click()
    assert chat.titles == ["Two"] and chat.page.list.records[0].is_archived
    chat.page.list.archive_requested.emit(newer, False)
    assert chat.page.list.archive.isHidden() and chat.titles == ["Two", "One"]
    chat.page.toggle_archived()
    chat.page.toast.act()
    assert len(chat.titles) == 2


def test_a_message_brings_an_archived_chat_back(chat: Chat) -> None:
    _, newer = two(chat)
    chat.controller.set_archived(newer, True)
    chat.controller.open(newer)
    chat.ask("More", "and more")
    assert chat.titles == ["Two", "One"]
    assert not any(c.is_archived for c in chat.store.conversations())


def test_a_search_finds_archived_chats_too(chat: Chat, qtbot: QtBot) -> None:
    _, newer = two(chat)
    chat.controller.set_archived(newer, True)
    chat.page.list.search.setText("two")
    qtbot.waitUntil(lambda: chat.titles == ["Two"])
    assert chat.page.list.records[0].is_archived


def test_the_menu_of_a_chat_names_what_it_would_do(chat: Chat) -> None:
    two(chat)

    def texts() -> list[str]:
        menu = chat.page.list.menu_for(chat.page.list.records[0])
        return [action.text() for action in menu.actions() if action.text()]

    assert texts() == ["Rename", "Pin", "Archive", "Export…", "Delete"]
    chat.page.toggle_pinned()
    assert texts()[1] == "Unpin"
