"""Every drawing of values has them as a table, by one mechanism."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QHBoxLayout, QTableView, QWidget
from pytestqt.qtbot import QtBot

from widgets.plot.clock import RedrawClock
from widgets.plot.painted import Plot
from widgets.plot.parts_bar import Part, PartsBar
from widgets.plot.series import Series
from widgets.plot.time_chart import TimeChart
from widgets.quality.bars import LayerBar, LayerChart
from widgets.speculation.panel import PositionBars


def parts() -> Plot:
    bar = PartsBar("Memory", ("predicted", "measured"))
    bar.show_parts([Part("Weights", "weights", 0.75, ("3 GiB", "2 GiB")), Part("Sum", "", 1, ())])
    return bar


def positions() -> Plot:
    bars = PositionBars()
    bars.show_counts((8, 4, 0), (6, 1, 0))
    return bars


def layers() -> Plot:
    chart = LayerChart()
    chart.show_bars([LayerBar("0", 0.02, None, "Worst: up")])
    return chart


@pytest.mark.parametrize(
    ("make", "first", "last"),
    [
        (parts, ["Weights", "75.0", "3 GiB", "2 GiB"], ["Sum", "", "", ""]),
        (positions, ["1", "8", "6", "75.0"], ["3", "0", "0", ""]),
        (layers, ["0", "0.02000", "", "Worst: up"], ["0", "0.02000", "", "Worst: up"]),
    ],
)
def test_the_table_opens_by_keyboard_and_from_the_menu(
    qtbot: QtBot, make: Callable[[], Plot], first: list[str], last: list[str]
) -> None:
    drawing = make()
    qtbot.addWidget(drawing)
    drawing.show()
    drawing.activateWindow()
    drawing.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(drawing.hasFocus)
    qtbot.keyClick(drawing, Qt.Key.Key_T)
    table = drawing.findChild(QTableView)
    model = table.model()
    rows = [[str(model.index(row, column).data()) for column in range(model.columnCount())]
            for row in range(model.rowCount())]  # fmt: skip
    assert (rows[0], rows[-1]) == (first, last)
    table.window().close()
    menu = drawing.make_menu()  # not opened: it would grab the keyboard
    assert len(menu.actions()) == 5
    menu.actions()[0].trigger()
    lines = QApplication.clipboard().text().splitlines()
    assert len(lines) == len(rows) + 1 and lines[1].startswith(first[0])


def test_of_several_drawings_in_a_window_t_opens_the_table_of_the_one_with_the_focus(
    qtbot: QtBot,
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    row = QHBoxLayout(window)
    clock = RedrawClock()
    charts = [TimeChart(t, "ms", [Series("a", "a", "p50")], clock=clock) for t in ("One", "Two")]
    others = [parts(), positions()]
    for drawing in (*charts, *others):
        row.addWidget(drawing)
    window.show()
    for drawing in (*charts, *others):
        window.activateWindow()
        drawing.setFocus(Qt.FocusReason.TabFocusReason)
        qtbot.waitUntil(drawing.hasFocus)
        qtbot.keyClick(window, Qt.Key.Key_T)
        opened = [table.window() for table in window.findChildren(QTableView)]
        assert [dialog.parent() for dialog in opened] == [drawing]
        opened[0].close()
        opened.clear()
        qtbot.waitUntil(lambda: not window.findChildren(QTableView))
