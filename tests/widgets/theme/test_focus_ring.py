"""What has the focus by Tab has one mark, its ring: Qt's own frame inside it would be a second."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from widgets.controls.layouts import vbox
from widgets.theme.theme import apply_theme

RING = 4
"""Pixels at the edge that it may change."""


@pytest.mark.parametrize("kind", (QPushButton, QToolButton))
def test_a_ring_is_all_that_a_focus_by_tab_adds(
    qtbot: QtBot, qapp: QApplication, kind: type[QPushButton | QToolButton]
) -> None:
    apply_theme(qapp, "light")
    window, first, other = QWidget(), kind(), kind()
    qtbot.addWidget(window)
    for one in (first, other):
        one.setText("Start lesson")
    vbox(first, other, of=window)
    window.show()
    with qtbot.waitActive(window):
        window.activateWindow()
    inside = first.rect().adjusted(RING, RING, -RING, -RING)
    other.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    other.setFocus()
    before, whole = first.grab(inside).toImage(), first.grab().toImage()
    first.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    qtbot.keyClick(other, Qt.Key.Key_Backtab)
    qtbot.waitUntil(first.hasFocus)
    assert window.testAttribute(Qt.WidgetAttribute.WA_KeyboardFocusChange)
    assert first.grab().toImage() != whole and first.grab(inside).toImage() == before
