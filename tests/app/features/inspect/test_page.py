"""The Inspect page has the views of the docks: one of each, wherever it is shown last."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.features.inspect.page import InspectPage, Tab
from app.features.inspect.slot import SharedView
from app.main.application import Application
from tests.app.window_fixtures import application, script
from tests.figures import numbers

__all__ = ["application", "script"]  # fixtures


@pytest.fixture
def page(application: Application) -> InspectPage:
    application.window.show_page_named("Inspect")
    return application.pages.inspect


def test_the_page_takes_the_views_and_the_docks_take_them_back(
    application: Application, page: InspectPage
) -> None:
    view, dock = application.views.timeline, application.views.timeline_dock
    assert view.isVisible() and page.isAncestorOf(view) and dock.isHidden()
    application.window.show_page_named("Tune")
    assert not page.isAncestorOf(view) and dock.isAncestorOf(view)
    application.window.show_page_named("Inspect")
    assert page.isAncestorOf(view)


@pytest.mark.slow
def test_a_dock_opened_beside_the_page_gives_its_view_back_when_it_closes(
    application: Application, page: InspectPage
) -> None:
    view, dock = application.views.timeline, application.views.timeline_dock
    dock.show()
    assert dock.isAncestorOf(view)
    dock.hide()
    assert page.isAncestorOf(view) and view.isVisible()


@pytest.mark.slow
def test_tabs_by_keys(qtbot: QtBot, application: Application, page: InspectPage) -> None:
    qtbot.keyClick(page, Qt.Key.Key_2)
    assert page.current == "kv-blocks" and application.views.kv_blocks.isVisible()
    page.tabs.setFocus()
    qtbot.keyClick(page.tabs, Qt.Key.Key_5, Qt.KeyboardModifier.AltModifier)
    assert page.current == "requests"
    qtbot.keyClick(page, Qt.Key.Key_9)
    assert page.current == "requests"
    application.window.show_page_named("Chat")
    composer = application.pages.chat_page.composer.input
    composer.setFocus()
    qtbot.keyClick(composer, Qt.Key.Key_3, Qt.KeyboardModifier.AltModifier)
    assert page.isVisible() and page.current == "bottleneck" and not composer.toPlainText()
    assert page.tabs.tabToolTip(2).endswith("(Alt+3)")


@pytest.mark.slow
def test_a_tab_has_room_for_its_text_when_tabs_move_apart(
    qtbot: QtBot, application: Application, page: InspectPage
) -> None:
    tabs = page.tabs
    for width in (700, 1600, 700, 1600):
        application.window.resize(width, 700)
        qtbot.waitUntil(lambda: bool(tabs.property("tight")) is (page.width() < 640), timeout=3000)
        for index in range(tabs.count()):
            text = tabs.fontMetrics().horizontalAdvance(tabs.tabText(index))
            assert tabs.tabRect(index).width() >= text + 2 * (8 if page.width() < 640 else 12)


@pytest.mark.slow
def test_what_would_open_a_dock_chooses_the_tab(
    application: Application, page: InspectPage
) -> None:
    application.window.commands.run("dock.memory")
    assert page.current == "memory" and application.views.memory_dock.isHidden()
    application.views.show_step(7)
    assert page.current == "step-timeline" and application.views.timeline_dock.isHidden()


def test_a_view_is_shown_in_its_dock_if_that_is_open_and_else_on_the_page(
    application: Application, page: InspectPage
) -> None:
    views, window = application.views, application.window
    window.show_page_named("Chat")
    views.show_step(7)
    assert page.isVisible() and page.current == "step-timeline" and views.timeline_dock.isHidden()
    assert numbers(views.timeline.line.text()) == [7, views.timeline.view.history.capacity]
    window.show_page_named("Chat")
    views.timeline_dock.show()
    views.show_step(7)
    assert not page.isVisible() and not views.timeline_dock.isHidden()


def test_a_hidden_tab_is_not_drawn(application: Application, page: InspectPage) -> None:
    page.show_view("step-timeline")
    assert not application.views.kv_blocks.isVisible()
    assert not application.views.bottleneck.isVisible()


def test_the_first_place_has_the_view(qtbot: QtBot, qapp: QApplication) -> None:
    view = QLabel("one")
    shared = SharedView(view)
    first, second = shared.slot(), shared.slot()
    whole = InspectPage([Tab("A", "a", second), Tab("B", "b", QWidget())])
    for widget in (first, whole):
        qtbot.addWidget(widget)
    assert first.has_view
    first.show()
    whole.show()
    assert second.has_view and not first.has_view
    whole.tabs.setCurrentIndex(1)
    assert first.has_view and view.isVisible()
