"""Figures below a reply: whole groups, as many as there is room for."""

from __future__ import annotations

from PySide6.QtGui import QFontMetrics
from pytestqt.qtbot import QtBot

from widgets.chat.meters import BETWEEN, FiguresLine

GROUPS = ("TTFT 31 ms", "ITL 9.1 ms", "decode 102 tok/s", "fp32")


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


def test_a_first_group_that_does_not_fit_loses_its_details_and_no_digits(qtbot: QtBot) -> None:
    line = FiguresLine()
    qtbot.addWidget(line)
    short = BETWEEN.join(["TTFT 17.6 ms", "ITL 3.5 ms"])
    line.resize(line.fontMetrics().horizontalAdvance(short) + 4, 20)
    line.show_line(BETWEEN.join(["TTFT 17.6 ms (prefill 7.55 ms, 96 of 129 tokens)", "ITL 3.5 ms"]))
    line.show()
    assert line.text() == short
    line.resize(line.fontMetrics().horizontalAdvance("TTFT 17.6 ms") + 4, 20)
    assert line.text() == "TTFT 17.6 ms"


def test_details_give_way_before_figures(qtbot: QtBot) -> None:
    """Also of a group that is not the first."""
    line = FiguresLine()
    qtbot.addWidget(line)
    line.show()
    groups = ["stopped", "TTFT 17.6 ms (prefill 7.55 ms, 96 of 129 tokens)", "mean ITL 3.5 ms"]
    line.show_line(BETWEEN.join(groups))
    advance = line.fontMetrics().horizontalAdvance
    line.resize(advance(BETWEEN.join(groups)) + 2, 20)
    assert line.text() == BETWEEN.join(groups)
    line.resize(line.width() - 10, 20)
    assert line.text() == BETWEEN.join(["stopped", "TTFT 17.6 ms", "mean ITL 3.5 ms"])
