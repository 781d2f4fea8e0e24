"""A number's field: what is typed is taken, or refused with its range."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from tests.figures import numbers
from widgets.controls.number_control import NumberControl, RowSpec


@pytest.mark.parametrize("least", (0, 1))
def test_a_minus_sign_is_not_lost(qtbot: QtBot, least: int) -> None:
    """A field without negative numbers would drop it, and take 5 for -5."""
    control = NumberControl(RowSpec("n", "Number", "", "live", minimum=least, maximum=64))
    qtbot.addWidget(control)
    control.set_value(8)
    refused = list[str]()
    control.field.refused.connect(refused.append)
    control.field.selectAll()
    qtbot.keyClicks(control.field, "-5")
    qtbot.keyClick(control.field, Qt.Key.Key_Return)
    assert control.value() == 8
    assert [numbers(text)[-2:] for text in refused] == [[least, 64]]
    control.field.selectAll()
    qtbot.keyClicks(control.field, "5")
    qtbot.keyClick(control.field, Qt.Key.Key_Return)
    assert control.value() == 5 and refused[1:] == [""]


def test_an_exponent_is_not_lost(qtbot: QtBot) -> None:
    control = NumberControl(RowSpec("n", "Number", "", "live", minimum=1, maximum=4096))
    qtbot.addWidget(control)
    control.field.selectAll()
    qtbot.keyClicks(control.field, "2e3")
    qtbot.keyClick(control.field, Qt.Key.Key_Return)
    assert control.value() == 2000
