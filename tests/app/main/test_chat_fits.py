"""The Chat page in small windows and with large text: Send and five messages are whole, nothing is
beyond the window's edge, and panes and docks have their widths back afterwards."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.main.application import Application
from app.window.dock_layouts import SETTINGS_WIDTH
from tests.app.cuts import expect_whole
from tests.app.fakes import Script
from tests.app.window_fixtures import application, ask, set_text, usual_text, wait_idle
from tests.tiers import tiered

__all__ = ["application", "usual_text"]  # fixtures

OPENS = "/models/tiny"
MESSAGES, SETTLES_MS = 5, 200
SIZES = tiered(
    [((w, h), t) for w, h in ((1000, 640), (1280, 800), (1600, 1000)) for t in (100, 130, 160)],
    [((1000, 640), 160)],
)


@pytest.fixture
def script() -> Script:
    return Script(replies=2)


def place_of(widget: QWidget) -> QRect:
    return QRect(widget.mapTo(widget.window(), QPoint()), widget.size())


def whole_messages(application: Application) -> int:
    transcript = application.pages.chat_page.transcript
    area = QRect(transcript.viewport().mapTo(application.window, QPoint()),
                 transcript.viewport().size())  # fmt: skip
    return sum(area.contains(place_of(view)) for view in transcript.views)


@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_send_and_five_messages_are_whole(
    qtbot: QtBot, application: Application, size: tuple[int, int], percent: int
) -> None:
    window, page = application.window, application.pages.chat_page
    ask(application, "hello")
    for _ in range(2):
        wait_idle(qtbot, application)
        page.composer.set_text("hello")
        page.composer.send()
    wait_idle(qtbot, application)
    window.resize(*size)
    set_text(qtbot, application, percent)
    page.composer.set_text("next")
    qtbot.waitUntil(lambda: window.size().toTuple() == size)
    page.transcript.jump_to_end()
    qtbot.waitUntil(lambda: whole_messages(application) >= MESSAGES)
    for button in (page.composer._button, page.composer.sampling, page.composer.attach):
        assert button.isVisible() and window.rect().contains(place_of(button))
    for open_it in (lambda: None, page.open_inspector, page.search):
        open_it()
        expect_whole(qtbot, window)
    page.new_chat()
    assert page.composer.isVisible()


def test_a_message_that_is_too_long_leaves_room_for_the_buttons(
    qtbot: QtBot, application: Application
) -> None:
    window, page = application.window, application.pages.chat_page
    window.resize(1000, 640)
    set_text(qtbot, application, 160)
    page.composer.set_text("many words " * 8000)
    qtbot.waitUntil(page.context_notice.isVisible)
    qtbot.waitUntil(lambda: window.size().toTuple() == (1000, 640))
    qtbot.wait(SETTLES_MS)
    button, text = place_of(page.composer._button), place_of(page.composer.input)
    assert not button.intersects(text) and window.rect().contains(button)
    assert not page.composer._button.isEnabled()


@pytest.mark.slow
def test_docks_and_dialogs_have_their_sizes_back_after_large_text(
    qtbot: QtBot, application: Application
) -> None:
    window, dock = application.window, application.settings_dock
    window.resize(1600, 1000)
    window.commands.run("dock.engine-settings")
    application.preferences.show()
    dialog = application.preferences.dialog
    assert dialog is not None
    panes = application.pages.chat_page.panes
    sizes = lambda: (dock.width(), dialog.size().toTuple(), panes._splitter.sizes())
    qtbot.wait(SETTLES_MS)
    before = sizes()
    set_text(qtbot, application, 160)
    room = dialog.screen().availableSize()
    assert dialog.width() <= room.width() and dialog.height() <= room.height()
    assert dialog.rect().contains(place_of(dialog.close_button))
    set_text(qtbot, application, 100)
    qtbot.waitUntil(lambda: sizes() == before)


@pytest.mark.slow
def test_the_settings_on_tune_have_their_width_back_in_a_small_window(
    qtbot: QtBot, application: Application
) -> None:
    """A small window leaves them less than their width: that is not the user's choice."""
    window, dock = application.window, application.settings_dock
    window.resize(1280, 800)
    window.show_widget(application.pages.tune)
    qtbot.waitUntil(lambda: dock.width() == SETTINGS_WIDTH)
    set_text(qtbot, application, 160)
    qtbot.wait(SETTLES_MS)
    most = dock.maximumWidth()
    dock.setMaximumWidth(SETTINGS_WIDTH + 100)  # as a page with wide contents does
    qtbot.waitUntil(lambda: dock.width() == SETTINGS_WIDTH + 100)
    dock.setMaximumWidth(most)
    set_text(qtbot, application, 100)
    qtbot.waitUntil(lambda: dock.width() == SETTINGS_WIDTH)
