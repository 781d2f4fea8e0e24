"""The size of all text: the application's font, fonts of widgets, fonts of text that is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from widgets.chat.message_text import MessageText
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import button
from widgets.theme.fonts import figure_font, point_size, text_scale
from widgets.theme.theme import apply_text_size, apply_theme, theme_notifier


@pytest.fixture
def application(qapp: QApplication) -> Iterator[QApplication]:
    apply_theme(qapp, "light")
    yield qapp
    apply_text_size(qapp, 100)


def test_icons_of_buttons_grow_with_the_text(qtbot: QtBot, application: QApplication) -> None:
    alone, beside = IconButton("copy", "Copy", lambda: None), button("Start", lambda: None)
    sides = list[tuple[int, int]]()
    for percent in (80, 100, 160):
        apply_text_size(application, percent)
        for one in (alone, beside):
            qtbot.addWidget(one)
            one.ensurePolished()
        sides.append((alone.iconSize().width(), beside.iconSize().width()))
    assert sides[0] == sides[1] == (16, 16)
    assert 16 < sides[2][0] < sides[2][1] == 26


def test_every_font_follows_and_stays_over_a_change_of_the_theme(
    qtbot: QtBot, application: QApplication
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    plain, own, foreign, message = QLabel("a"), QLabel("1"), QLabel("b"), MessageText()
    own.setFont(figure_font("small"))
    other = figure_font()
    other.setPointSizeF(31.0)
    foreign.setFont(other)
    column = QVBoxLayout(window)
    for widget in (plain, own, foreign, message):
        column.addWidget(widget)
    window.show()
    message.set_plain("some words")
    small, body, told = point_size("small"), point_size("body"), []
    tell = lambda: told.append(1)
    theme_notifier().changed.connect(tell)
    apply_text_size(application, 150)
    assert told == [1] and text_scale() == 1.5
    for mode in ("light", "dark"):
        apply_theme(application, mode)  # type: ignore[arg-type]
        message.render_now()
        assert plain.font().pointSizeF() == pytest.approx(body * 1.5, abs=0.1)
        assert own.font().pointSizeF() == pytest.approx(small * 1.5, abs=0.1)
        assert foreign.font().pointSizeF() == 31.0
        written = message.document().begin().begin().fragment().charFormat().font()
        assert written.pointSizeF() == pytest.approx(body * 1.5, abs=0.1)
    apply_text_size(application, 150)
    assert len(told) == 2  # the second theme; the same size again is nothing new
    theme_notifier().changed.disconnect(tell)
    apply_text_size(application, 100)
    assert own.font().pointSizeF() == small and plain.font().pointSizeF() == body
