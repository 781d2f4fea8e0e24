"""A row of the settings keeps to the width of its panel."""

from pytestqt.qtbot import QtBot

from widgets.controls.number_control import RowSpec
from widgets.controls.setting_row import SettingRow, TextControl


def test_a_long_hint_does_not_widen_the_row(qtbot: QtBot) -> None:
    row = SettingRow(RowSpec("drafts", "Draft model", "What drafts.", "live"))
    qtbot.addWidget(row)
    before = row.minimumSizeHint().width()
    row.set_hint("Demo draft model, 1.2 million parameters, of the same vocabulary. " * 3)
    assert row.minimumSizeHint().width() <= max(before, 200)


def test_a_second_line_of_a_hint_moves_nothing_where_its_room_is_kept(qtbot: QtBot) -> None:
    row = SettingRow(RowSpec("drafts", "Draft model", "What drafts.", "live"))
    qtbot.addWidget(row)
    row.keep_hint_lines(2)
    heights = []
    for hint in ("", "1 running", "1 running\nNo gain expected"):
        row.set_hint(hint)
        heights.append(row.sizeHint().height())
    assert len(set(heights)) == 1
    row.keep_hint_lines(3)
    assert row.sizeHint().height() > heights[0]


def test_a_text_is_emitted_once_when_it_is_left_and_reset_is_silent(qtbot: QtBot) -> None:
    spec = RowSpec("dtype", "Dtype", "", "restart", auto="Default: auto", is_text=True)
    row = SettingRow(spec)
    qtbot.addWidget(row)
    told: list[tuple[str, object]] = []
    row.value_changed.connect(lambda name, value: told.append((name, value)))
    line = row.control
    assert isinstance(line, TextControl) and line.placeholderText() == spec.auto
    for text in ("float32 ", "float32"):
        line.setText(text)
        line.editingFinished.emit()
    assert told == [("dtype", "float32")] and row.value() == "float32"
    row.set_value("")
    line.editingFinished.emit()
    assert told == [("dtype", "float32")] and row.value() == ""
