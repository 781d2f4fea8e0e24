"""Several conversations: each generates, is named and is deleted by itself."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot

from engine.snapshot import FinishReason
from tests.app.chat_fixtures import Chat, chat

__all__ = ["chat"]


def test_several_conversations_generate_at_once(chat: Chat) -> None:
    one = chat.send("One")
    chat.page.new_chat()
    two = chat.send("Two")
    chat.engine.say("zwei", request_id=two)
    chat.engine.say("eins", " noch", request_id=one)
    chat.engine.say(" mehr", request_id=one)
    assert chat.texts == ["Two", "zwei"]
    assert [r.is_busy for r in chat.page.list.records] == [True, True]
    assert chat.controller.generation.num_sent == 2
    first = chat.controller.conversations[-1]
    chat.controller.open(first.id)
    assert chat.texts == ["One", "eins noch mehr"]
    chat.engine.say(" jetzt", request_id=one)
    assert chat.texts[-1] == "eins noch mehr jetzt"
    chat.engine.finish(request_id=two)
    chat.engine.finish(request_id=one)
    chat.settle()
    assert not any(r.is_busy for r in chat.page.list.records)


def test_the_list_says_what_is_generating(chat: Chat) -> None:
    request = chat.send("One")
    chat.controller.generation._shown_at = float("-inf")  # a second has gone by
    chat.engine.say("a", "b", "c", request_id=request)
    assert chat.page.list.records[0].detail == "generating · 18.2 ms/token"


def test_what_is_being_written_belongs_to_its_conversation(chat: Chat) -> None:
    chat.ask("One", "1")
    first = chat.controller.current.id
    chat.page.composer.set_text("half a thought")
    chat.page.new_chat()
    assert chat.page.composer.text == ""
    chat.controller.open(first)
    assert chat.page.composer.text == "half a thought"


def test_renaming_in_place(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("One", "1")
    chat.page.rename_current()
    editor = chat.page.list.view.viewport().findChild(QLineEdit)
    assert editor is not None
    editor.setText("  A better   title ")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    chat.settle()
    assert chat.titles == ["A better title"]
    assert [c.title for c in chat.store.conversations()] == ["A better title"]
    chat.ask("Another question", "2")
    assert chat.titles == ["A better title"]


def test_deleting_can_be_undone(chat: Chat) -> None:
    chat.ask("One", "1")
    chat.page.new_chat()
    chat.ask("Two", "2")
    chat.page.delete_current()
    chat.settle()
    assert chat.titles == ["One"] and chat.texts == ["One", "1"]
    assert "“Two”" in chat.page.toast.text()
    chat.page.toast.act()
    chat.settle()
    assert chat.titles == ["Two", "One"] and chat.texts == ["Two", "2"]
    assert len(chat.store.conversations()) == 2


def test_what_was_deleted_is_purged_when_the_toast_goes(chat: Chat) -> None:
    chat.ask("One", "1")
    gone = chat.controller.current.id
    chat.page.delete_current()
    chat.settle()
    assert chat.titles == [] and chat.texts == []
    assert len(chat.store.messages(gone)) == 2
    chat.page.toast.dismiss()
    chat.settle()
    assert chat.store.messages(gone) == []


def test_deleting_while_generating_stops_and_undo_brings_the_text_back(chat: Chat) -> None:
    request = chat.send("One")
    chat.engine.say("half")
    chat.page.delete_current()
    assert chat.engine.aborted == [request]
    chat.engine.finish(reason=FinishReason.ABORT, request_id=request)
    chat.settle()
    chat.page.toast.act()
    chat.settle()
    assert chat.texts == ["One", "half"] and chat.states[-1] == "stopped"
