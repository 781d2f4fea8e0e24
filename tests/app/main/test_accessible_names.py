"""Whoever cannot see the window: every place that Tab comes to says what it is."""

from __future__ import annotations

from functools import partial

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractSpinBox, QApplication, QLineEdit, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.main.application import Application
from tests.app.window_fixtures import application, script
from widgets.controls.frames import scroll_by_keys

__all__ = ["application", "script"]


def nameless(root: QWidget) -> list[str]:
    """What Tab comes to in `root` as it is on the screen, and what a reader could not name."""
    found = []
    for widget in root.findChildren(QWidget):
        is_part = isinstance(widget, QLineEdit) and isinstance(
            widget.parentWidget(), QAbstractSpinBox
        )  # of a field that has the focus, and the name
        if is_part or not widget.isVisible() or not widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            continue
        spoken = QAccessible.queryAccessibleInterface(widget)
        if spoken is None or not spoken.text(QAccessible.Text.Name):
            found.append(f"{type(widget).__name__} in {type(widget.parentWidget()).__name__}")
    return found


def all_are_named(root: QWidget) -> None:
    assert nameless(root) == []


def test_every_place_of_every_page_and_view_has_a_name(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    window.resize(1600, 1000)
    docks = [dock for dock, _ in application.views.docks]
    docks += [application.charts_dock, application.log_dock]
    for index in range(len(window.pages)):
        window.show_page(index)
        for dock in docks:
            dock.show()
            dock.raise_()
            qtbot.waitUntil(partial(all_are_named, window), timeout=5000)  # tabs are made late


@pytest.mark.slow
def test_every_place_of_the_other_windows_has_a_name(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    application.preferences.show()
    QApplication.processEvents()
    others = [w for w in QApplication.topLevelWidgets() if w.isVisible() and w is not window]
    assert len(others) == 1
    assert [nameless(other) for other in others] == [[]]


@pytest.mark.slow
def test_tab_does_not_stop_at_a_form_but_at_its_fields(
    qtbot: QtBot, application: Application
) -> None:
    """A form that scrolls had the keyboard for a key, and nothing on the screen said so."""
    application.preferences.show()
    for index in range(len(application.window.pages)):
        application.window.show_page(index)
        QApplication.processEvents()
        for window in QApplication.topLevelWidgets():
            for area in window.findChildren(QScrollArea):
                fields = area.findChildren(QAbstractSpinBox)
                if area.isVisible() and any(field.isVisible() for field in fields):
                    assert not area.focusPolicy() & Qt.FocusPolicy.TabFocus, area.accessibleName()


@pytest.mark.slow
def test_what_is_scrolled_by_keys_scrolls_and_has_a_ring(
    qtbot: QtBot, application: Application
) -> None:
    """Every area that Tab comes to."""
    window = application.window
    window.resize(1100, 560)
    application.preferences.show()
    for index in range(len(window.pages)):
        window.show_page(index)
        QApplication.processEvents()
        for top in QApplication.topLevelWidgets():
            for area in top.findChildren(QScrollArea):
                if area.isVisible() and area.focusPolicy() & Qt.FocusPolicy.TabFocus:
                    assert area.property("ring"), area.accessibleName()
                    bars = (area.verticalScrollBar(), area.horizontalScrollBar())
                    assert any(bar.maximum() > bar.minimum() for bar in bars)


def test_an_area_is_a_stop_while_there_is_more_in_it_than_it_shows(qtbot: QtBot) -> None:
    area = QScrollArea()
    qtbot.addWidget(area)
    inside = QWidget()
    inside.setFixedSize(100, 500)
    area.setWidget(inside)
    scroll_by_keys(area)
    area.resize(200, 200)
    area.show()
    tab = Qt.FocusPolicy.TabFocus
    qtbot.waitUntil(lambda: area.focusPolicy() == tab)
    area.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(area, Qt.Key.Key_Down)
    assert area.verticalScrollBar().value() > 0
    area.resize(200, 700)
    qtbot.waitUntil(lambda: area.focusPolicy() == Qt.FocusPolicy.NoFocus)
