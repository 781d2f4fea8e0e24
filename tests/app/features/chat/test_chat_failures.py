"""What fails in a chat is shown in its place, and no text is lost."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from app.storage import StorageFullError
from tests.app.chat_fixtures import Chat, chat, chat_in
from widgets.chat.message_view import AssistantMessageView

__all__ = ["chat"]


def test_a_refused_request_is_shown_in_its_place(chat: Chat) -> None:
    chat.send("A very long text")
    chat.engine.fail("The prompt has 9,000 tokens, the context 8,192.", "Shorten it.")
    chat.settle()
    view = chat.page.transcript.views[-1]
    assert isinstance(view, AssistantMessageView)
    assert not view._error.isHidden() and "9,000" in view._error._cause.text()
    assert chat.states == ["complete", "error"]
    stored = chat.stored()[-1].error
    assert stored is not None and stored["remedy"] == "Shorten it."
    view._regenerate.click()
    chat.settle()
    assert len(chat.engine.order) == 2


def test_a_crash_keeps_what_was_written_and_waits_for_the_engine(chat: Chat) -> None:
    chat.send("One")
    chat.engine.say("half a reply")
    chat.engine.crash("The engine ran out of memory.", "Restart it.")
    chat.settle()
    assert chat.states == ["complete", "error"] and chat.texts[-1] == "half a reply"
    chat.send("Two")
    assert len(chat.engine.order) == 1
    assert chat.page.transcript.views[-1].record.is_open and chat.states[-1] == "waiting"
    chat.engine.set_state("ready")
    assert chat.engine.prompt()[-1] == ("user", "Two")


def test_without_a_model_a_message_waits_and_can_be_withdrawn(qtbot: QtBot, tmp_path: Path) -> None:
    with chat_in(tmp_path, "loading") as chat:
        chat.page.composer.set_text("Early")
        chat.page.composer.send()
        chat.settle()
        assert chat.engine.order == []
        assert "loaded" in chat.page.transcript.views[-1].record.status
        chat.controller.stop()
        chat.settle()
        assert chat.states == ["complete", "stopped"]
        chat.page.composer.set_text("Later")
        chat.page.composer.send()
        chat.settle()
        chat.engine.set_state("ready")
        assert chat.engine.prompt() == [("user", "Early\n\nLater")]
        chat.engine.finish("now")
        chat.settle()
        assert chat.states[-1] == "complete"


def test_what_cannot_be_stored_goes_back_to_the_composer(chat: Chat) -> None:
    chat.ask("One", "1")
    path = chat.store.path
    error = StorageFullError(f"There is no room on the disk of {path.parent}: 0 MiB free.", "Free.")

    def fail(connection: object) -> None:
        raise error

    add = chat.store.add_messages
    chat.store.add_messages = lambda *args, **kw: chat.store._writer.submit(fail)  # type: ignore[method-assign, misc]
    chat.page.composer.set_text("Important")
    chat.page.composer.send()
    chat.settle()
    assert chat.page.composer.text == "Important"
    assert chat.texts == ["One", "1"] and len(chat.engine.order) == 1
    assert "0 MiB free" in chat.page.problem_notice.text()
    assert not chat.page.problem_notice.isHidden()
    chat.store.add_messages = add  # type: ignore[method-assign]
    chat.page.composer.send()
    chat.settle()
    assert chat.page.composer.text == "" and chat.engine.prompt()[-1] == ("user", "Important")
    assert chat.page.problem_notice.isHidden()


def test_a_first_message_that_cannot_be_stored_leaves_no_conversation(chat: Chat) -> None:
    chat.store._writer._connection.execute("PRAGMA query_only = 1")
    chat.page.composer.set_text("Important")
    chat.page.composer.send()
    chat.settle()
    assert chat.titles == [] and chat.texts == []
    assert chat.page.composer.text == "Important" and chat.engine.order == []
    assert "INFERDECK_DATA_DIR" in chat.page.problem_notice.text()


def test_a_reply_that_cannot_be_saved_is_saved_when_it_can_be(chat: Chat, qtbot: QtBot) -> None:
    chat.send("One")
    chat.store._writer._connection.execute("PRAGMA query_only = 1")
    chat.engine.finish("all of it")
    chat.settle()
    assert chat.stored()[-1].text == "" and not chat.page.problem_notice.isHidden()
    chat.store._writer._connection.execute("PRAGMA query_only = 0")
    qtbot.waitUntil(lambda: chat.stored()[-1].text == "all of it", timeout=3000)
    qtbot.waitUntil(lambda: chat.page.problem_notice.isHidden())
