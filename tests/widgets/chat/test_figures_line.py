"""Figures below a reply: whole groups, as many as there is room for."""

from __future__ import annotations

from PySide6.QtGui import QFontMetrics
from pytestqt.qtbot import QtBot

from widgets.chat.meters import BETWEEN, FiguresLine

GROUPS = ("TTFT 31 ms", "ITL 9.1 ms", "102 tok/s", "fp32")


def test_groups_at_the_end_give_way_whole(qtbot: QtBot) -> None:
    line = FiguresLine()
    qtbot.addWidget(line)
    line.show_line(BETWEEN.join(GROUPS))
    metrics = QFontMetrics(line.font())
    line.show()
    for count in range(1, len(GROUPS) + 1):
        shown = BETWEEN.join(GROUPS[:count])
        line.resize(metrics.horizontalAdvance(shown) + 2, 20)
        assert line.text() == shown
    line.resize(60, 20)
    assert GROUPS[0].startswith(line.text().rstrip("…")) and line.text()
