"""A window of 1000 x 700 pixels, at the usual size of text and at a large one: nothing on the Chat
page is cut, and the list of chats gives way where it has no room; the Tune page's load bar too."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.features.chat.page import ChatPage
from app.main.application import Application
from tests.app.window_fixtures import application, ask, script, usual_text, wait_idle
from tests.tiers import tiered

__all__ = ["application", "script", "usual_text"]  # fixtures

OPENS = "/models/tiny"
REMARK = "Small demonstration model: speed and memory teach nothing on it. Open a real one."
WAIT_MS = 20_000


@pytest.fixture
def page(application: Application) -> ChatPage:
    page = application.pages.chat_page
    page.empty.set_suggestions([("A title of a few words", "And a question.")] * 6)
    page.model_notice.say(REMARK, "Open a model…", lambda: None)
    return page


def cut(page: ChatPage) -> list[str]:
    """What of the page's own parts is seen in part: beyond the page, or a button too narrow for
    its words. What lies in something that scrolls is not asked."""
    found = []
    for part in (page.list, page.model_notice, page.composer, page.panes.strip):
        for widget in [part, *part.findChildren(QWidget)]:
            if not widget.isVisible() or widget.visibleRegion().isEmpty():
                continue
            place = widget.rect().translated(widget.mapTo(page, widget.rect().topLeft()))
            is_button = isinstance(widget, QPushButton)
            least = widget.minimumSizeHint().width() if is_button else 0
            if not page.rect().contains(place) or widget.width() < least:
                found.append(f"{widget.accessibleName() or type(widget).__name__}: {place}")
    return found


@pytest.mark.parametrize(
    ("size", "percent"),
    tiered([((1000, 700), 100), ((1000, 700), 150), ((1000, 700), 160), ((1280, 800), 150)],
           [((1000, 700), 160)]),
)  # fmt: skip
def test_nothing_is_cut(
    qtbot: QtBot, application: Application, page: ChatPage, size: tuple[int, int], percent: int
) -> None:
    application.window.resize(*size)
    application.settings.preferences.set("text_size", percent)
    qtbot.waitUntil(lambda: not cut(page), timeout=WAIT_MS)
    ask(application, "hello")
    wait_idle(qtbot, application)
    qtbot.waitUntil(lambda: not cut(page), timeout=WAIT_MS)
    if page.panes.folding.folds_list:
        page.panes.show_list()
    qtbot.waitUntil(lambda: page.list.isVisible() and not cut(page), timeout=WAIT_MS)


def test_the_list_gives_way_and_comes_back(
    qtbot: QtBot, application: Application, page: ChatPage
) -> None:
    panes = page.panes
    ask(application, "hello")
    wait_idle(qtbot, application)
    answered = application.pages.chat.current.id
    application.window.resize(1000, 700)
    application.settings.preferences.set("text_size", 160)
    qtbot.waitUntil(lambda: panes.folding.folds_list, timeout=WAIT_MS)
    assert not page.list.isVisible() and page.composer.isVisible()
    panes.list_button.click()
    assert page.list.isVisible() and not page.composer.isVisible()
    page.list.opened.emit(answered)  # what was chosen takes its place
    assert not page.list.isVisible() and page.composer.isVisible()
    page.search()
    assert page.list.isVisible()
    page.new_chat()
    assert not page.list.isVisible() and page.composer.isVisible()
    application.settings.preferences.set("text_size", 100)
    qtbot.waitUntil(lambda: not panes.folding.folds_list, timeout=WAIT_MS)
    assert page.list.isVisible() and page.composer.isVisible() and not panes.strip.isVisible()


@pytest.mark.slow
def test_a_list_that_was_hidden_stays_hidden(
    qtbot: QtBot, application: Application, page: ChatPage
) -> None:
    application.window.resize(1600, 1000)
    qtbot.waitUntil(lambda: not page.panes.folding.folds_list, timeout=WAIT_MS)
    page.panes.toggle_list()
    assert not page.list.isVisible()
    application.window.resize(1000, 700)
    application.settings.preferences.set("text_size", 150)
    qtbot.waitUntil(lambda: page.panes.folding.folds_list, timeout=WAIT_MS)
    page.panes.toggle_list()  # for the moment
    assert page.list.isVisible()
    application.settings.preferences.set("text_size", 100)
    qtbot.waitUntil(lambda: not page.panes.folding.folds_list, timeout=WAIT_MS)
    assert not page.list.isVisible() and not page.panes.list_wanted


@pytest.mark.slow
def test_what_informs_is_one_line_where_it_would_be_many(
    qtbot: QtBot, application: Application, page: ChatPage
) -> None:
    application.window.resize(1000, 700)
    application.settings.preferences.set("text_size", 150)
    notice = page.model_notice
    notice.say(REMARK * 4, "Open a model…", lambda: None)
    qtbot.waitUntil(notice.is_brief, timeout=WAIT_MS)
    assert notice.text() == REMARK * 4
    page.problem_notice.say(REMARK * 4, "Close", lambda: None)
    assert not page.problem_notice.is_brief()  # a problem is told whole
    notice.say(REMARK)
    qtbot.waitUntil(lambda: not notice.is_brief(), timeout=WAIT_MS)


@pytest.mark.slow
def test_the_load_bar_has_two_rows_where_it_has_no_room_for_one(
    qtbot: QtBot, application: Application
) -> None:
    tune = application.pages.tune
    application.window.show_widget(tune)
    bar = tune.load_bar
    parts = (bar.workload, bar.pacing, bar.button)

    def is_whole() -> bool:
        return all(part.width() >= part.minimumSizeHint().width() for part in parts)

    application.window.resize(1000, 700)
    application.settings.preferences.set("text_size", 150)
    below = lambda: bar.button.y() > bar.workload.geometry().bottom()
    qtbot.waitUntil(lambda: below() and is_whole(), timeout=WAIT_MS)
    assert bar.rect().contains(bar.button.geometry())
    application.settings.preferences.set("text_size", 100)
    application.window.resize(1600, 1000)
    qtbot.waitUntil(lambda: not below() and is_whole(), timeout=WAIT_MS)
    assert bar.concurrency.x() - bar.workload.geometry().right() < 20  # beside it


@pytest.mark.slow
def test_lines_of_the_list_grow_with_the_text(
    qtbot: QtBot, application: Application, page: ChatPage
) -> None:
    ask(application, "hello")
    wait_idle(qtbot, application)
    application.window.resize(1600, 1000)
    view = page.list.view
    before = view.visualRect(view.model().index(0, 0)).height()
    application.settings.preferences.set("text_size", 150)
    higher = lambda: view.visualRect(view.model().index(0, 0)).height() > 1.3 * before
    qtbot.waitUntil(higher, timeout=WAIT_MS)
