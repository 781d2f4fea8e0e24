"""Searching all chats: the hits, and the way to each."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from tests.app.chat_fixtures import Chat, chat

__all__ = ["chat"]


def test_search_finds_texts_and_goes_to_the_message(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("About caches", "The watermark keeps blocks free")
    chat.page.new_chat()
    chat.ask("About stories", "Once upon a time")
    chat.page.list.search.setText("watermark")
    qtbot.waitUntil(lambda: chat.titles == ["About caches"])
    (record,) = chat.page.list.records
    assert [record.detail[a:b] for a, b in record.marks] == ["watermark"]
    qtbot.keyClick(chat.page.list.search, Qt.Key.Key_Return)
    assert chat.texts == ["About caches", "The watermark keeps blocks free"]
    chat.page.list.search.setText("nothing has this")
    qtbot.waitUntil(lambda: chat.titles == [])
    qtbot.keyClick(chat.page.list.search, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: len(chat.titles) == 2)


def test_search_lists_every_hit_of_a_chat_and_goes_to_each(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("About caches", "The watermark keeps blocks free")
    chat.ask("And then", "Below the watermark nobody is admitted")
    chat.page.list.search.setText("watermark")
    qtbot.waitUntil(lambda: len(chat.page.list.records) == 2)
    newest, first = chat.page.list.records
    assert (newest.place, first.place) == ("1 of 2", "2 of 2") and newest.id == first.id
    view, model = chat.page.list.view, chat.page.list._model
    assert "2 of 2" in model.index(1).data(Qt.ItemDataRole.AccessibleTextRole)
    chat.page.list.grab()
    opened: list[str] = []
    chat.page.list.hit_opened.connect(lambda chat_id, hit: opened.append(hit))
    for row in (1, 0):
        view.setCurrentIndex(model.index(row))
        qtbot.keyClick(view, Qt.Key.Key_Return)
        assert view.currentIndex().row() == row  # it stays where one is
    assert opened == [first.hit, newest.hit]
    marked = [bool(v.text.extraSelections()) for v in chat.page.transcript.views]
    assert marked == [False, False, False, True]


def test_search_shows_the_version_that_was_found(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("Name one", "Aardvark")
    chat.controller.regenerate()
    chat.settle()
    chat.engine.finish("Zebra")
    chat.settle()
    chat.page.list.search.setText("aardvark")
    qtbot.waitUntil(lambda: chat.page.list.records[0].hit != "")
    qtbot.keyClick(chat.page.list.search, Qt.Key.Key_Return)
    assert chat.texts == ["Name one", "Aardvark"]


def test_search_marks_the_words_and_scrolls_to_them(chat: Chat, qtbot: QtBot) -> None:
    chat.ask("Tell", "\n\n".join(["A paragraph of prose."] * 60) + "\n\nThe watermark, at last.")
    chat.ask("More", "Nothing")
    chat.page.list.search.setText("WATERMARK last")
    qtbot.waitUntil(lambda: chat.page.list.records[0].hit != "")
    qtbot.keyClick(chat.page.list.search, Qt.Key.Key_Return)
    text = chat.page.transcript.views[1].text
    marks = text.extraSelections()
    assert [m.cursor.selectedText() for m in marks] == ["watermark", "last"]  # type: ignore[attr-defined]
    place = text.cursorRect(marks[0].cursor)  # type: ignore[attr-defined]
    shown = chat.page.transcript.viewport()
    assert shown.rect().contains(text.viewport().mapTo(shown, place.center()))
    qtbot.keyClick(chat.page.list.search, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not text.extraSelections())


def test_half_a_surrogate_pair_finds_nothing(chat: Chat) -> None:
    chat.ask("lorem", "ipsum")
    assert chat.controller.search("lorem") and chat.controller.search("lorem \ud83d") == []
