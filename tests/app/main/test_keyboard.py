"""The window without a mouse: Enter presses what has the focus, Tab goes down a page."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from app.main.application import Application
from tests.app.window_fixtures import application, open_model, script
from widgets.controls.layouts import button

__all__ = ["application", "script"]


def tab(qtbot: QtBot) -> QWidget:
    before = QApplication.focusWidget()
    assert before is not None
    qtbot.keyClick(before, Qt.Key.Key_Tab)
    after = QApplication.focusWidget()
    assert after is not None
    return after


def test_enter_on_the_welcome_page_opens_the_chat(qtbot: QtBot, application: Application) -> None:
    place = application.pages.models_place
    application.window.show_widget(place)
    place.show_welcome()
    chat = next(b for b in place.welcome.findChildren(QPushButton) if b.text() == "Chat")
    chat.setFocus()
    qtbot.keyClick(chat, Qt.Key.Key_Return)
    assert application.window.page.widget is application.pages.chat_page
    assert application.pages.chat_page.composer.input.hasFocus()


@pytest.mark.parametrize("key", (Qt.Key.Key_Return, Qt.Key.Key_Enter))
def test_enter_presses_a_button_once_each(
    qtbot: QtBot, application: Application, key: Qt.Key
) -> None:
    pressed: list[str] = []
    plain, tool = button("Plain", lambda: pressed.append("plain")), QToolButton()
    tool.clicked.connect(lambda: pressed.append("tool"))
    for one in (plain, tool):
        one.setParent(application.pages.chat_page)
        one.show()
        one.setFocus(Qt.FocusReason.TabFocusReason)
        qtbot.keyClick(one, key)
    assert pressed == ["plain", "tool"]
    plain.setFocus()
    plain.setEnabled(False)  # the focus goes on: Enter is the next widget's
    qtbot.keyClick(application.window, key)
    assert pressed[:2] == ["plain", "tool"] and "plain" not in pressed[2:]


def test_enter_does_not_press_where_it_moves_the_focus(
    qtbot: QtBot, application: Application
) -> None:
    """As Enter in a list that closes, whose opener gets the focus back."""
    pressed: list[str] = []
    plain, field = button("Plain", lambda: pressed.append("plain")), QLineEdit()
    field.returnPressed.connect(plain.setFocus)
    for one in (plain, field):
        one.setParent(application.pages.chat_page)
        one.show()
    field.setFocus()
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert plain.hasFocus() and not pressed
    qtbot.keyClick(plain, Qt.Key.Key_Return)
    assert pressed == ["plain"]


def test_tab_goes_from_the_suggestions_to_the_offer_and_the_message(
    qtbot: QtBot, application: Application
) -> None:
    application.lessons.offer.show()
    open_model(qtbot, application)
    page, offer = application.pages.chat_page, application.lessons.offer
    cards = page.empty.cards
    assert len(cards) > 1
    qtbot.waitUntil(cards[-1].isVisible)
    cards[0].setFocus(Qt.FocusReason.TabFocusReason)
    followed = [tab(qtbot) for _ in range(len(cards) + 2)]
    assert followed == [*cards[1:], offer.dismiss, offer.start, page.composer.input]


def test_an_empty_list_of_chats_takes_no_focus(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    page = application.pages.chat_page
    assert page.list.view.focusPolicy() is Qt.FocusPolicy.NoFocus
    page.send("What is TTFT?")
    assert page.list.view.focusPolicy() is Qt.FocusPolicy.StrongFocus
