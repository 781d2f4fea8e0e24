"""A row of the settings keeps to the width of its panel."""

from pytestqt.qtbot import QtBot

from widgets.controls.number_control import RowSpec
from widgets.controls.setting_row import SettingRow


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
