"""A widget's own keys beside a command of the window with the same keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import vbox

DONE: list[str] = []


@pytest.fixture
def fields(qtbot: QtBot) -> Iterator[tuple[QLineEdit, QLineEdit]]:
    """One inside a widget that has keys of its own, one beside it."""
    DONE.clear()
    window, local = QWidget(), QWidget()
    inside, beside = QLineEdit(), QLineEdit()
    vbox(inside, of=local)
    vbox(local, beside, of=window)
    for key in ("Esc", "Del"):
        action = QAction(window)
        action.setShortcut(QKeySequence(key))
        action.triggered.connect(lambda _=False, key=key: DONE.append(f"window {key}"))
        window.addAction(action)
    keys = {key: (lambda key=key: DONE.append(f"local {key}")) for key in ("Esc", "Del")}
    LocalKeys(local, keys, lambda: inside.text() != "window")
    qtbot.addWidget(window)
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    yield inside, beside


def press(qtbot: QtBot, field: QLineEdit, key: Qt.Key, *modifiers: Qt.KeyboardModifier) -> None:
    field.setFocus()
    qtbot.keyClick(field, key, *modifiers)


def test_keys_of_a_widget_precede_those_of_its_window(
    qtbot: QtBot, fields: tuple[QLineEdit, QLineEdit]
) -> None:
    inside, beside = fields
    press(qtbot, inside, Qt.Key.Key_Escape)
    press(qtbot, beside, Qt.Key.Key_Escape)
    press(qtbot, inside, Qt.Key.Key_Escape, Qt.KeyboardModifier.ShiftModifier)
    assert DONE == ["local Esc", "window Esc"]


def test_keys_that_are_not_wanted_are_the_windows(
    qtbot: QtBot, fields: tuple[QLineEdit, QLineEdit]
) -> None:
    inside, _ = fields
    inside.setText("window")
    press(qtbot, inside, Qt.Key.Key_Escape)
    assert DONE == ["window Esc"]


def test_a_field_inside_edits_with_its_keys(
    qtbot: QtBot, fields: tuple[QLineEdit, QLineEdit]
) -> None:
    inside, _ = fields
    inside.setText("text")
    inside.home(False)
    press(qtbot, inside, Qt.Key.Key_Delete)
    assert (inside.text(), DONE) == ("ext", [])
