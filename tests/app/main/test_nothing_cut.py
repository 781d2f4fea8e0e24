"""Every page and every panel, in a small window and with large text: nothing is seen in part."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.features.models.welcome import StartButton
from app.features.serve.page import OTHERS, SERVE
from app.main.application import Application
from app.storage.model_sources import shape_sources
from app.storage.run_records import Kind
from tests.app.cuts import WAIT_MS, expect_whole
from tests.app.window_fixtures import application, ask, script, set_text, usual_text, wait_idle
from tests.tiers import tiered

__all__ = ["application", "script", "usual_text"]  # fixtures

OPENS = "/models/tiny"
SIZES = tiered(
    [((1280, 800), 100), ((1000, 640), 100), ((1280, 800), 160), ((1000, 640), 160)],
    [((1000, 640), 160)],
)


@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_pages_and_panels(
    qtbot: QtBot, application: Application, size: tuple[int, int], percent: int
) -> None:
    window = application.window
    window.resize(*size)
    set_text(qtbot, application, percent)
    ask(application, "hello")
    wait_idle(qtbot, application)
    expect_whole(qtbot, window)
    for dock, _ in application.views.docks:
        dock.raise_()
        expect_whole(qtbot, window)
    for index in range(len(window.pages)):
        window.show_page(index)
        expect_whole(qtbot, window)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_what_opens_within_a_page(
    qtbot: QtBot, application: Application, size: tuple[int, int], percent: int
) -> None:
    window, pages = application.window, application.pages
    window.resize(*size)
    set_text(qtbot, application, percent)
    ask(application, "hello")
    wait_idle(qtbot, application)
    pages.chat_page.open_inspector()
    expect_whole(qtbot, window)
    window.show_widget(pages.inspect)
    for tab in range(pages.inspect.tabs.count()):
        pages.inspect.tabs.setCurrentIndex(tab)
        expect_whole(qtbot, window)
    window.show_widget(pages.server)
    pages.server.view.keep_content.click()
    for tab in (OTHERS, SERVE):
        pages.server.show_tab(tab)
        expect_whole(qtbot, window)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_the_first_page_and_a_models_card(
    qtbot: QtBot, application: Application, size: tuple[int, int], percent: int
) -> None:
    window, place = application.window, application.pages.models_place
    window.resize(*size)
    set_text(qtbot, application, percent)
    place.show_welcome()
    qtbot.waitUntil(place.welcome.fits.isVisible, timeout=WAIT_MS)
    expect_whole(qtbot, window)
    start = place.welcome.findChildren(QPushButton)[1]  # the first is "Show models"
    assert not start.visibleRegion().isEmpty()  # without scrolling
    starts = place.welcome.findChildren(StartButton)
    assert len({one.width() for one in starts}) == 1
    assert starts[0].width() == max(QPushButton.sizeHint(one).width() for one in starts)
    place.page.open_model(shape_sources()[0].path)
    qtbot.waitUntil(lambda: not place.page.detail.fits.isHidden(), timeout=WAIT_MS)
    expect_whole(qtbot, window)


@pytest.mark.slow
@pytest.mark.parametrize("percent", tiered([100, 140], [140]))
def test_settings_in_a_wide_window(qtbot: QtBot, application: Application, percent: int) -> None:
    """A row is laid out for the width that it has, not for that of the window."""
    set_text(qtbot, application, percent)
    preferences = application.preferences
    preferences.show()
    dialog = preferences.dialog
    assert dialog is not None
    dialog.resize(1600, 900)
    sections = ("Appearance", "Batching", "Precision", "KV cache", "Speculative decoding", "Model")
    for section in sections:
        dialog.show_section(section)
        expect_whole(qtbot, dialog)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_forms_of_the_runs_page(
    qtbot: QtBot, application: Application, size: tuple[int, int], percent: int
) -> None:
    window, page = application.window, application.pages.runs
    window.resize(*size)
    set_text(qtbot, application, percent)
    window.show_widget(page)
    expect_whole(qtbot, window)
    for kind in Kind:
        page.show_form(kind)
        expect_whole(qtbot, window)
