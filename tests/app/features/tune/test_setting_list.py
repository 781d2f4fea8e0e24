"""The settings that matter first, Advanced, and settings without effect."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QDoubleSpinBox
from pytestqt.qtbot import QtBot

from app.features.tune.setting_list import SettingList
from app.window.setting_specs import ESSENTIAL, Machine, sections
from engine.config import SETTINGS
from tests.figures import numbers


@pytest.fixture
def rows(qtbot: QtBot) -> SettingList:
    made = SettingList(Machine())
    qtbot.addWidget(made)
    made.resize(320, 900)
    made.show()
    return made


def seen(rows: SettingList) -> set[str]:
    return {name for name, row in rows.rows.items() if row.isVisible()}


def test_every_setting_has_one_row_and_the_first_ones_are_seen(rows: SettingList) -> None:
    assert set(rows.rows) == {s.name for specs in sections(Machine()).values() for s in specs}
    assert set(ESSENTIAL) <= set(SETTINGS)
    assert seen(rows) == set(ESSENTIAL)


def test_advanced_opens_with_mouse_and_keyboard_and_tells_it(
    qtbot: QtBot, rows: SettingList
) -> None:
    told: list[bool] = []
    rows.advanced_toggled.connect(told.append)
    rows.advanced.click()
    assert seen(rows) == set(rows.rows)
    rows.advanced.setFocus()
    qtbot.keyClick(rows.advanced, Qt.Key.Key_Space)
    assert seen(rows) == set(ESSENTIAL) and told == [True, False]


def test_settings_without_effect_are_one_line_until_it_is_clicked(rows: SettingList) -> None:
    rows.set_unused({"speculative_model", "quantization_group_size"})
    assert seen(rows) == set(ESSENTIAL) - {"speculative_model"}
    assert numbers(rows.unused.text()) == [2]
    rows.unused.click()
    assert seen(rows) == set(rows.rows)
    rows.unused.click()
    assert seen(rows) == set(rows.rows) - {"speculative_model", "quantization_group_size"}
    rows.set_unused(set())
    assert not rows.unused.isVisible() and seen(rows) == set(rows.rows)


def test_the_focused_row_stays_in_sight_in_a_lower_list(qtbot: QtBot, rows: SettingList) -> None:
    row = rows.rows["quantization"]
    row.take_focus()
    top = row.mapTo(rows, QPoint()).y()
    rows.resize(rows.width(), top + 4)
    assert row.visibleRegion().boundingRect() == row.rect()
    rows.resize(rows.width(), top - 20)
    rows.verticalScrollBar().setValue(0)  # the user scrolled away from it
    rows.resize(rows.width(), top - 60)
    assert rows.verticalScrollBar().value() == 0


def test_a_section_without_rows_has_no_heading(rows: SettingList) -> None:
    rows.set_advanced(True)
    before = rows.widget().sizeHint().height()
    rows.set_unused({"watermark", "block_size", "gpu_memory_utilization", "kv_allocation"})
    heads = [head for heads, own in rows._sections for head in heads if own[0].isHidden()]
    assert heads and all(head.isHidden() for head in heads)
    assert rows.widget().sizeHint().height() < before


@pytest.mark.parametrize("name", ["max_num_seqs", "watermark", "quantization_group_size"])
def test_any_row_can_be_reached_by_its_name(
    qtbot: QtBot, rows: SettingList, name: str
) -> None:
    rows.set_unused({"quantization_group_size"})
    rows.reveal(name)
    qtbot.waitUntil(lambda: not rows.rows[name].visibleRegion().isEmpty())


def test_a_row_of_a_number_that_is_asked_for_can_be_typed_into(
    qtbot: QtBot, rows: SettingList
) -> None:
    chosen: list[object] = []
    rows.chosen.connect(lambda name, value: chosen.append((name, value)))
    rows.rows["max_num_seqs"].set_value(8)
    rows.reveal("max_num_seqs")
    field = rows.focusWidget()
    assert isinstance(field, QDoubleSpinBox) and field.lineEdit().selectedText() == "8"
    qtbot.keyClicks(field, "5")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert chosen == [("max_num_seqs", 5)]
