"""The window opens with all that version 0.1 left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.main.application import Application
from tests.app.fakes import FakeEngineThread, Script
from tests.app.older_files import ANSWER, older
from tests.app.window_fixtures import open_model
from widgets.theme.fonts import point_size
from widgets.theme.theme import theme

__all__ = ["older"]


@pytest.fixture
def application(qapp: QApplication, older: Path) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    made.show()
    try:
        yield made
    finally:
        # what holds for the whole process is as the other tests know it
        made.window.commands.run("layout.chat")
        for name in ("theme", "text_size", "log_level", "log_size"):
            made.settings.preferences.reset(name)
        made.shutdown()


def test_the_window_opens_with_all_of_it(
    qtbot: QtBot, application: Application, older: Path
) -> None:
    window, pages, commands = application.window, application.pages, application.window.commands
    assert application.history.records == []  # nothing is said of files that could not be read

    page, chat = pages.chat_page, pages.chat
    assert [record.title for record in page.list.records] == [  # the pinned one first
        "What is paging?", "Count to ten", "Say hello", "Notes, in short"
    ]  # fmt: skip
    assert [one.title for one in chat.archived] == ["Why is the sky blue?"]
    assert not page.panes.list_wanted and page.composer.text == "A question that waits"
    assert "Short and dry" in [preset.name for preset in chat.presets if preset.is_own]
    chat.open(page.list.records[0].id)
    assert [message.text for message in chat.current.path()] == ["What is paging?", ANSWER]
    assert page.composer.text == "and how large is a block?"
    assert chat.current.sampling.temperature == 0.35
    assert chat.tokens.has(chat.current.path()[1].id)

    assert application.layouts.current.name == "On stage" and application.layouts.text_size == 130
    assert window.page.name == "Chat" and theme().is_dark
    assert not application.log_dock.isHidden() and application.settings_dock.isHidden()
    stage = point_size("body")
    commands.run("layout.own.night shift")
    assert window.page.name == "Tune" and point_size("body") < stage
    assert not application.settings_dock.isHidden()
    keys = ("model.unload", "model.open", "chat.list", "layout.own.on stage", "dock.log")
    assert [commands.action(name).shortcut().toString() for name in keys] == [
        "Ctrl+O", "", "Ctrl+Alt+L", "Ctrl+Alt+9", "F8"
    ]  # fmt: skip

    open_model(qtbot, application, "/models/tiny")
    applied = application.engine_settings.model.applied
    assert applied is not None and applied.max_num_seqs == 64
    assert application.engine_settings.rows["watermark"].value() == 0.1
    profiles = application.settings.profiles.profiles
    assert [one.name for one in profiles] == ["Empty", "From a later version", "many & at once"]

    assert pages.server.panel.form.port.value() == 8123
    names = [one.name for one in pages.server.store.connections]
    assert names == ["Big box", "Rack vLLM", "Laptop", "Gateway", "Never reached"]
    assert [one.repo_id for one in pages.models.queue] == ["somebody/model-a", "somebody/model-b"]
    commands.run("page.runs")
    qtbot.waitUntil(lambda: len(pages.runs.table.runs) == 2)

    application.recordings.open(older / "recordings" / "run.inferdeck-flight")
    qtbot.waitUntil(lambda: bool(application.recordings.windows))
    replay = application.recordings.windows[-1]
    qtbot.waitUntil(lambda: replay.views.kv_blocks.map.blocks is not None)
    replay.player.seek(replay.player.duration)
    qtbot.waitUntil(lambda: not replay.player.is_jumping)
    assert replay.views.timeline.view.history.end == 4
    replay.close()
