"""The forms of new runs are made when they are first shown, and are then like all of the window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.features.runs.forms import FORMS, FormFrame
from app.features.runs.page import RunsPage
from app.main.application import Application
from app.paths import starter_model
from app.storage.run_records import Kind
from tests.app.features.runs.conftest import wait_for_end
from tests.app.window_fixtures import next_run, open_model, set_text, usual_text
from tests.tiers import first_fast
from widgets.theme.fonts import ui_font
from widgets.theme.theme import apply_theme, load_theme

__all__ = ["usual_text"]

MOST_WIDGETS = 2050
"""Of the window before anything was opened: each costs time when theme or text size change."""


class Windows(QObject):
    """Every window that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.shown.append(type(watched).__name__)
        return False


@pytest.fixture
def windows(qapp: QApplication) -> Iterator[Windows]:
    made = Windows()
    qapp.installEventFilter(made)
    yield made
    qapp.removeEventFilter(made)


def forms(page: RunsPage) -> list[FormFrame]:
    return page.findChildren(FormFrame)


@pytest.mark.slow
def test_the_window_is_made_without_the_forms_and_shows_no_window_before(
    qapp: QApplication, qtbot: QtBot, windows: Windows
) -> None:
    with next_run(qapp) as application:
        assert windows.shown == []
        assert len(application.window.findChildren(QWidget)) <= MOST_WIDGETS
        assert forms(application.pages.runs) == []


@pytest.mark.slow
def test_a_form_is_made_once_and_takes_the_keyboard_from_no_window(
    application: Application, page: RunsPage, windows: Windows
) -> None:
    for number, kind in enumerate((*FORMS, *FORMS), 1):
        page.show_form(kind)
        assert len(forms(page)) == min(number, len(FORMS))
        (shown,) = [form for form in forms(page) if form.isVisible()]
        assert shown.isAncestorOf(QApplication.focusWidget())
        page.show_table()
    assert windows.shown == []


@pytest.fixture
def light_again(qapp: QApplication) -> Iterator[None]:
    yield
    apply_theme(qapp, "light")


@pytest.mark.parametrize("kind", first_fast(1, FORMS))
@pytest.mark.usefixtures("light_again")
def test_a_form_has_the_theme_and_text_size_that_came_before_it(
    qapp: QApplication, qtbot: QtBot, application: Application, page: RunsPage, kind: Kind
) -> None:
    apply_theme(qapp, "dark")
    set_text(qtbot, application, 150)
    page.show_form(kind)
    (form,) = forms(page)
    panel = form.grab().toImage().pixelColor(form.width() // 2, 3)
    assert panel == load_theme("dark").color("panel")
    button = page._form(kind).start
    assert button.font().pointSizeF() == ui_font().pointSizeF()


def test_a_form_offers_the_models_and_the_open_one(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    open_model(qtbot, application, str(starter_model()))
    page.show_form(Kind.EVALUATE)
    model = page.evaluating.form.candidate.model
    assert model.path == str(starter_model())
    model.choose("")
    page.show_table()
    page.show_form(Kind.EVALUATE)
    assert model.path == str(starter_model())


@pytest.mark.slow
def test_the_form_of_an_evaluation_says_why_one_from_elsewhere_failed(
    qtbot: QtBot, page: RunsPage, tmp_path: Path
) -> None:
    page.quantizing.measure(str(tmp_path / "gone"), str(starter_model()))
    wait_for_end(qtbot, page)
    assert page.evaluating.panel.error.text() and not page.quantizing.panel.error.text()
    page.show_form(Kind.EVALUATE)
    assert page.evaluating.panel.error.isVisible()
