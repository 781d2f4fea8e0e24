"""A page of two halves: tabs switch what stands at the left; in little room they stack."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


WIDTHS = st.integers(600, 1800)


@settings(max_examples=20)
@given(st.lists(st.tuples(WIDTHS, st.booleans()), max_size=4), WIDTHS)
def test_the_halves_follow_from_the_width_whatever_the_page_was_before(
    qapp: QApplication, before: list[tuple[int, bool]], width: int
) -> None:
    lefts = []
    for changes in ((), before):
        frame = PageFrame("", (("List", QLabel()),), QLabel(), left_width=300, narrow=500)
        for passed, is_shown in (*changes, (width, True)):
            frame.setVisible(is_shown)
            frame.resize(passed, 400)
        lefts.append(frame.findChild(QSplitter).sizes()[0])
        frame.deleteLater()
    assert abs(lefts[0] - lefts[1]) <= 1 and lefts[0] >= min(300, 0.42 * width) - 10


def test_a_moved_half_keeps_its_width(qtbot: QtBot) -> None:
    frame = PageFrame("", (("List", QLabel()),), QLabel(), left_width=300, narrow=500)
    qtbot.addWidget(frame)
    frame.resize(1000, 400)
    frame.show()
    split = frame.findChild(QSplitter)
    split.setSizes([700, 300 - split.handleWidth()])
    split.splitterMoved.emit(700, 1)
    for width in (1400, 1100):
        frame.resize(width, 400)
        assert abs(split.sizes()[0] - 700) <= 2
