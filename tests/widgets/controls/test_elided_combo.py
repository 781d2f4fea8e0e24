"""A choice without room for its text ends in an ellipsis; with room it is shown whole."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication, QComboBox, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from widgets.controls.combo import ElidedCombo
from widgets.controls.number_control import RowSpec
from widgets.controls.setting_row import SettingRow
from widgets.theme.theme import apply_theme

LONG = "as stored: AWQ, 4 bits, groups of 128 · 4.98 MiB"


@pytest.fixture
def combo(qapp: QApplication, qtbot: QtBot) -> ElidedCombo:
    apply_theme(qapp, "light")
    made = ElidedCombo()
    qtbot.addWidget(made)
    made.addItems([LONG, "auto"])
    made.show()
    return made


def test_a_text_without_room_ends_in_an_ellipsis(combo: ElidedCombo) -> None:
    combo.resize(160, combo.sizeHint().height())
    shown = combo._option().currentText
    assert shown.startswith("as stored: A") and shown.endswith("…")
    combo.setCurrentText("auto")
    assert combo._option().currentText == "auto"


def test_a_text_with_room_is_whole_and_painted_as_ever(qapp: QApplication, qtbot: QtBot) -> None:
    apply_theme(qapp, "light")
    window = QWidget()
    qtbot.addWidget(window)
    column = QVBoxLayout(window)
    ours, usual = ElidedCombo(), QComboBox()
    for one in ours, usual:
        one.addItems([LONG, "auto"])
        column.addWidget(one)
    window.show()
    window.setFocus()
    assert ours._option().currentText == LONG
    assert ours.grab().toImage() == usual.grab().toImage()


def test_a_row_of_choices_has_one(qtbot: QtBot) -> None:
    row = SettingRow(RowSpec("weights", "Weights", "", "reload", choices=((1, LONG),)))
    qtbot.addWidget(row)
    assert isinstance(row.control, ElidedCombo)
