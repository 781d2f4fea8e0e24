"""The chat that was open last is open again, scrolled where it was, with its draft."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from app.features.chat.last_chat import LastChatKeeper
from app.window.settings_store import LastChat, SettingsStore
from tests.app.chat_fixtures import chat_in

LONG = "\n\n".join(f"Paragraph {number} of a long reply." for number in range(80))


def test_it_is_open_again_where_it_was(qtbot: QtBot, tmp_path: Path) -> None:
    settings = SettingsStore(tmp_path / "settings.ini")
    with chat_in(tmp_path) as made:
        keeper = LastChatKeeper(made.page, settings)
        made.ask("First", LONG)
        made.ask("Second", LONG)
        first = made.controller.current.id
        assert settings.last_chat == LastChat(first)  # at once: a crash loses nothing
        made.controller.new_conversation()
        made.ask("Other", "Text.")
        made.controller.open(first)
        made.page.composer.set_text("a draft")
        made.settle()
        bar = made.page.transcript.verticalScrollBar()
        bar.setValue(bar.maximum() // 2)
        place = made.page.transcript.reading_place()
        assert place is not None
        keeper.close()
        assert settings.last_chat == LastChat(first, *place)
    with chat_in(tmp_path) as made:
        keeper = LastChatKeeper(made.page, settings)
        keeper.reopen()
        assert made.controller.current.id == first
        assert made.page.composer.text == "a draft"
        qtbot.waitUntil(lambda: made.page.transcript.reading_place() == place)


def test_the_end_and_a_new_chat_are_kept_as_such(qtbot: QtBot, tmp_path: Path) -> None:
    settings = SettingsStore(tmp_path / "settings.ini")
    with chat_in(tmp_path) as made:
        keeper = LastChatKeeper(made.page, settings)
        made.ask("First", LONG)
        keeper.close()
        assert settings.last_chat == LastChat(made.controller.current.id)
    with chat_in(tmp_path) as made:
        keeper = LastChatKeeper(made.page, settings)
        keeper.reopen()
        assert made.controller.current.messages and made.page.transcript.follows
        made.controller.new_conversation()
        assert settings.last_chat == LastChat()
    with chat_in(tmp_path) as made:
        keeper = LastChatKeeper(made.page, settings)
        keeper.reopen()
        assert not made.controller.current.messages
        settings.last_chat = LastChat("a chat that was deleted")
        keeper.reopen()
        assert not made.controller.current.messages
