"""A page of two halves: tabs switch what stands at the left; in little room they stack."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QApplication, QLabel, QSplitter
from pytestqt.qtbot import QtBot

from widgets.controls.frames import PageFrame


def test_tabs_choose_the_form_and_a_narrow_page_stacks(qtbot: QtBot) -> None:
    first, second, right = QLabel("list"), QLabel("form"), QLabel("what it is about")
    forms = (("List", first), ("Form", second))
    frame = PageFrame("What to look at", forms, right, left_width=300, narrow=500)
    qtbot.addWidget(frame)
    frame.resize(900, 400)
    frame.show()
    split = frame.findChild(QSplitter)
    assert frame.tabs.accessibleName() == "What to look at"
    assert first.isVisible() and right.isVisible() and not second.isVisible()
    assert split.orientation() is Qt.Orientation.Horizontal
    left, _ = split.sizes()
    assert abs(left - 300) < 20
    qtbot.keyClick(frame.tabs, Qt.Key.Key_Right)
    assert second.isVisible() and not first.isVisible()
    frame.resize(480, 700)
    assert split.orientation() is Qt.Orientation.Vertical and second.isVisible()
    frame.resize(900, 400)
    assert split.orientation() is Qt.Orientation.Horizontal
    assert abs(split.sizes()[0] - left) < 20  # as it was, not as high as it was


def test_a_page_that_was_laid_out_small_at_first_begins_with_its_width(qtbot: QtBot) -> None:
    frame = PageFrame("", (("List", QLabel()),), QLabel(), left_width=300, narrow=500)
    qtbot.addWidget(frame)
    for width in (200, 640, 1000):
        frame.resize(width, 400)
    frame.show()
    assert abs(frame.findChild(QSplitter).sizes()[0] - 300) < 40


def test_larger_text_wants_wider_halves(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = PageFrame("", (("List", QLabel()),), QLabel(), left_width=300, narrow=500)
    qtbot.addWidget(frame)
    frame.resize(1000, 400)
    frame.show()
    split = frame.findChild(QSplitter)
    assert abs(split.sizes()[0] - 300) < 40
    monkeypatch.setattr("widgets.controls.frames.text_scale", lambda: 1.5)
    QApplication.sendEvent(frame, QEvent(QEvent.Type.LayoutRequest))
    qtbot.waitUntil(lambda: abs(split.sizes()[0] - 450) < 40, timeout=10_000)
    assert split.orientation() is Qt.Orientation.Horizontal


def test_where_the_halves_stack_the_form_has_the_larger_part_until_it_is_moved(
    qtbot: QtBot,
) -> None:
    forms = (("List", QLabel()),)
    frame = PageFrame("", forms, QLabel(), left_width=300, narrow=500)
    qtbot.addWidget(frame)
    frame.resize(900, 700)
    frame.show()
    split = frame.findChild(QSplitter)
    for height in (700, 400, 600):
        frame.resize(480, height)
        upper, lower = split.sizes()
        assert upper > lower > 0.3 * height
    split.setSizes([150, 450])
    split.splitterMoved.emit(150, 1)
    frame.resize(480, 400)
    assert abs(split.sizes()[0] - 100) < 20
