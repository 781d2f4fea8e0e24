"""Keys are pressed, given, taken over, taken back; every tooltip and menu follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMainWindow, QPushButton
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from app.features.preferences.keyboard_page import NOTHING_FOUND, KeyboardPage
from app.window.commands import Command, CommandRegistry
from app.window.keymap import objection
from widgets.controls.text import set_key_tip

CONTROL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def page(qtbot: QtBot) -> Iterator[KeyboardPage]:
    window = QMainWindow()
    registry = CommandRegistry(window)
    registry.add(
        Command("model.open", "Open model…", lambda: None, "File", "Ctrl+O"),
        Command("chat.list", "List of chats", lambda: None, "Chat", "Ctrl+B"),
        Command("chat.pin", "Pin chat on top", lambda: None, "Chat"),
    )
    made = KeyboardPage(registry)
    window.setCentralWidget(made)
    qtbot.addWidget(window)
    window.show()
    yield made


def press(qtbot: QtBot, page: KeyboardPage, command: str, key: Qt.Key) -> None:
    page.choose(command)
    qtbot.keyClick(page.view, Qt.Key.Key_Return)
    qtbot.keyClick(page.edit, key, CONTROL)
    assert page.edit.keySequence().isEmpty()


def keys(page: KeyboardPage) -> list[str]:
    registry = page._registry
    return [registry.action(command.id).shortcut().toString() for command in registry]


def test_pressed_keys_are_given_and_everything_names_them(qtbot: QtBot, page: KeyboardPage) -> None:
    button = QPushButton()
    qtbot.addWidget(button)
    set_key_tip(button, "Open a model", "model.open")
    assert button.toolTip() == "Open a model (Ctrl+O)"
    press(qtbot, page, "model.open", Qt.Key.Key_J)
    assert keys(page) == ["Ctrl+J", "Ctrl+B", ""] and page.reset.isEnabled()
    assert button.toolTip() == "Open a model (Ctrl+J)"
    registry = page._registry
    assert registry.shortcuts()["File"] == [("Open model", "Ctrl+J")]
    assert next(e.shortcut for e in registry.entries() if e.id == "model.open") == "Ctrl+J"
    assert page.message.startswith("1 of 3 ")
    page.reset.click()
    assert keys(page) == ["Ctrl+O", "Ctrl+B", ""] and not page.reset_all.isEnabled()


def test_keys_of_another_command_are_taken_over_when_the_user_says_so(
    qtbot: QtBot, page: KeyboardPage
) -> None:
    press(qtbot, page, "chat.pin", Qt.Key.Key_O)
    assert "Ctrl+O" in page.message and "Open model" in page.message and keys(page)[2] == ""
    page.leave.click()
    assert page.take_over.isHidden() and keys(page) == ["Ctrl+O", "Ctrl+B", ""]
    press(qtbot, page, "chat.pin", Qt.Key.Key_O)
    page.take_over.click()
    assert keys(page) == ["", "Ctrl+B", "Ctrl+O"] and page.take_over.isHidden()
    page.reset_all.click()
    assert keys(page) == ["Ctrl+O", "Ctrl+B", ""]


def test_keys_that_writing_needs_are_refused_in_words(qtbot: QtBot, page: KeyboardPage) -> None:
    press(qtbot, page, "chat.pin", Qt.Key.Key_C)
    assert page.message == objection("Ctrl+C") != "" and keys(page)[2] == ""


def test_delete_takes_the_keys_away_and_escape_leaves_them(
    qtbot: QtBot, page: KeyboardPage
) -> None:
    page.choose("chat.list")
    qtbot.keyClick(page.view, Qt.Key.Key_Return)
    qtbot.keyClick(page.edit, Qt.Key.Key_Escape)
    assert keys(page)[1] == "Ctrl+B" and page.edit.keySequence().isEmpty()
    qtbot.keyClick(page.view, Qt.Key.Key_Delete)
    assert keys(page)[1] == ""
    page.reset.click()
    qtbot.keyClick(page.edit, Qt.Key.Key_Backspace)
    assert keys(page)[1] == ""


def test_commands_are_found_by_name_menu_and_keys(
    page: KeyboardPage, qtmodeltester: ModelTester
) -> None:
    assert (page.search("chat"), page.search("ctrl+b"), page.search("open file")) == (2, 1, 1)
    assert page.command is not None and page.command.id == "model.open"
    assert page.search("nothing like it") == 0
    assert page.message == NOTHING_FOUND and not page.edit.isEnabled()
    assert page.search("") == 3
    qtmodeltester.check(page.table)
