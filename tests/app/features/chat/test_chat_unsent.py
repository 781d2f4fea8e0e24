"""What is written and was not sent: it is there again, in its own chat, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from app.features.chat.draft import SAVE_AT_LEAST_S, SAVE_DELAY_MS
from app.storage import NEW, ChatStore
from tests.app.chat_fixtures import Chat, chat, chat_in, kill_when_it_says

__all__ = ["chat"]


def write(chat: Chat, text: str) -> None:
    """Type, and pause."""
    QTest.keyClicks(chat.page.composer.input, text)
    chat.page.draft.keep()
    chat.settle()


def test_every_chat_has_its_own_text_after_the_program_was_closed(
    qtbot: QtBot, tmp_path: Path
) -> None:
    with chat_in(tmp_path) as chat:
        chat.ask("First", "1")
        write(chat, "more to the first")
        chat.page.new_chat()
        chat.ask("Second", "2")
        chat.page.new_chat()
        write(chat, "a third, not sent")
    with chat_in(tmp_path) as chat:
        page = chat.page
        assert page.composer.text == "a third, not sent"
        first, second = (
            next(r.id for r in page.list.records if r.title == title)
            for title in ("First", "Second")
        )
        chat.controller.open(first)
        assert page.composer.text == "more to the first"
        chat.controller.open(second)
        assert page.composer.text == ""
        page.new_chat()
        assert page.composer.text == "a third, not sent"
        chat.settle()
        assert chat.store.unsent() == {NEW: "a third, not sent", first: "more to the first"}


def test_it_is_kept_a_moment_after_the_last_key_without_any_other_cause(
    qtbot: QtBot, chat: Chat
) -> None:
    QTest.keyClicks(chat.page.composer.input, "Hello")
    assert chat.store.unsent() == {}  # no key waits for the disk
    qtbot.waitUntil(lambda: chat.store.unsent() == {NEW: "Hello"})


def test_who_writes_on_and_on_does_not_lose_it_all(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("app.features.chat.draft.time.monotonic", lambda: now)
    pause = chat.page.draft._pause
    pause.stop()
    QTest.keyClicks(chat.page.composer.input, "a")
    assert pause.interval() == SAVE_DELAY_MS and pause.isActive()
    now += SAVE_AT_LEAST_S
    begun: list[int] = []
    pause.start = begun.append  # type: ignore[method-assign, assignment]
    QTest.keyClicks(chat.page.composer.input, "b")
    assert begun == []  # it is not put off any more


def test_what_was_sent_is_not_kept(qtbot: QtBot, tmp_path: Path) -> None:
    with chat_in(tmp_path) as chat:
        write(chat, "One")
        chat.page.composer.send()
        chat.settle()
        assert chat.store.unsent() == {}
        chat.engine.finish("1")
        chat.settle()
        write(chat, "Two")
        chat.page.composer.send()
        chat.settle()
        assert chat.store.unsent() == {}
        write(chat, "while it answers")
        here = chat.controller.current.id
        assert chat.store.unsent() == {here: "while it answers"}
        chat.engine.finish("2")
        chat.settle()
        chat.controller.regenerate()
        chat.settle()
        assert chat.store.unsent() == {here: "while it answers"}
    with chat_in(tmp_path) as chat:
        assert chat.page.composer.text == ""
        chat.controller.open(here)
        assert chat.page.composer.text == "while it answers"


def test_it_is_sent_and_gone_in_one_step(qtbot: QtBot, chat: Chat) -> None:
    """Whatever ends the program, the text is in the message or in the composer, and not in both."""
    write(chat, "Important")
    chat.store._writer._connection.execute("PRAGMA query_only = 1")
    chat.page.composer.send()
    chat.settle()
    assert chat.store.unsent() == {NEW: "Important"} and chat.page.composer.text == "Important"
    write(chat, " indeed")  # cannot be kept either, and is tried again
    chat.store._writer._connection.execute("PRAGMA query_only = 0")
    qtbot.waitUntil(lambda: chat.store.unsent() == {NEW: "Important indeed"})


def test_a_first_message_that_was_not_stored_is_found_in_the_new_chat(chat: Chat) -> None:
    chat.ask("First", "1")
    chat.page.new_chat()
    chat.store._writer._connection.execute("PRAGMA query_only = 1")
    chat.page.composer.set_text("Important")
    chat.page.composer.send()
    chat.controller.open(next(r.id for r in chat.page.list.records if r.title == "First"))
    chat.page.new_chat()
    chat.page.composer.set_text("and this")
    chat.settle()
    assert chat.page.composer.text == "Important\nand this"
    assert chat.titles == ["First"]


def test_a_new_chat_that_was_left_is_gone_on_with(chat: Chat) -> None:
    chat.ask("First", "1")
    chat.controller.set_sampling("max_tokens", 77)
    chat.page.new_chat()
    chat.controller.set_sampling("max_tokens", 99)
    write(chat, "Begun")
    begun = chat.controller.current.id
    chat.controller.open(chat.page.list.records[0].id)
    assert chat.page.composer.text == ""
    chat.page.new_chat()
    assert (chat.controller.current.id, chat.page.composer.text) == (begun, "Begun")
    assert chat.controller.current.sampling.max_tokens == 99
    chat.page.composer.set_text("")
    chat.controller.open(chat.page.list.records[0].id)
    chat.page.new_chat()
    assert chat.controller.current.sampling.max_tokens == 77  # as of a new one


def test_a_deleted_chat_comes_back_with_its_text_or_takes_it_along(chat: Chat) -> None:
    chat.ask("First", "1")
    write(chat, "more")
    here = chat.controller.current.id
    chat.page.delete_current()
    chat.settle()
    assert chat.page.composer.text == ""
    chat.controller.restore(here)
    assert chat.page.composer.text == "more"
    chat.page.delete_current()
    chat.controller.purge(here)
    chat.settle()
    assert chat.store.unsent() == {}


def test_a_suggestion_does_not_take_the_place_of_what_is_written(chat: Chat) -> None:
    write(chat, "My own words")
    chat.page.empty.chosen.emit("A suggestion")
    chat.settle()
    assert chat.engine.prompt() == [("user", "A suggestion")]
    assert chat.page.composer.text == "My own words"
    assert chat.store.unsent() == {chat.controller.current.id: "My own words"}


@pytest.mark.parametrize("text", ["half a pair \ud83d", "\0", "line\nline\u2028line", "👩‍💻 ∑"])
def test_any_text_can_be_kept(qtbot: QtBot, tmp_path: Path, text: str) -> None:
    with chat_in(tmp_path) as chat:
        chat.page.composer.set_text(text)
        shown = chat.page.composer.text
        chat.page.draft.keep()
    with chat_in(tmp_path) as chat:
        assert chat.page.composer.text == shown.replace("\ud83d", "\ufffd")


SCRIPT = """
import sys
from pathlib import Path
from PySide6.QtCore import QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from tests.app.chat_fixtures import make_chat

app = QApplication([])
chat = make_chat(Path(sys.argv[1]))
chat.ask("First", "1")
QTest.keyClicks(chat.page.composer.input, "unfinished")
timer = QTimer(singleShot=True)
timer.timeout.connect(lambda: print("now", flush=True))
timer.start(1000)
app.exec()
"""


@pytest.mark.slow
def test_a_killed_program_loses_nothing_that_was_written_a_second_before(
    qtbot: QtBot, tmp_path: Path
) -> None:
    kill_when_it_says("now", SCRIPT, tmp_path)
    store = ChatStore(tmp_path / "chats.sqlite3")
    (kept,) = store.unsent().values()
    store.close()
    assert kept == "unfinished"
    with chat_in(tmp_path) as chat:
        assert chat.page.composer.text == ""  # it belongs to the first chat
        chat.controller.open(chat.page.list.records[0].id)
        assert chat.page.composer.text == "unfinished"
