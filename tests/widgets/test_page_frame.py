"""A page of two halves: tabs switch what stands at the left; in little room they stack."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QSplitter
from pytestqt.qtbot import QtBot

from widgets.page_frame import PageFrame


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
