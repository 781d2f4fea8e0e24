"""A table of figures that takes no more height than its rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPlainTextEdit, QSplitter
from pytestqt.qtbot import QtBot

from widgets.controls.figure_table import FigureRow, FigureTable


@pytest.fixture
def table(qtbot: QtBot) -> Iterator[FigureTable[int]]:
    made: FigureTable[int] = FigureTable("Figures")
    split = QSplitter(Qt.Orientation.Vertical)
    split.addWidget(QPlainTextEdit())
    split.addWidget(made)
    qtbot.addWidget(split)
    split.resize(400, 900)
    made.limit_height(True)
    split.show()
    yield made


def rows(count: int) -> list[FigureRow[int]]:
    return [FigureRow(n, [f"{n}", f"{n * n}"]) for n in range(count)]


@pytest.mark.parametrize("count", (1, 7))
def test_the_table_ends_with_its_rows(
    qtbot: QtBot, table: FigureTable[int], count: int
) -> None:
    table.show_rows(("n", "n²"), rows(count))
    qtbot.waitUntil(lambda: table.viewport().height() == table.verticalHeader().length())
    table.show_rows(("n", "n²"), rows(count + 2))  # as a run goes on
    qtbot.waitUntil(lambda: table.viewport().height() == table.verticalHeader().length())
    assert table.verticalScrollBar().maximum() == 0


def test_more_rows_than_room_scroll(qtbot: QtBot, table: FigureTable[int]) -> None:
    table.show_rows(("n", "n²"), rows(100))
    qtbot.waitUntil(lambda: table.verticalScrollBar().maximum() > 0)
    table.limit_height(False)
    table.show_rows(("n", "n²"), rows(1))
    qtbot.waitUntil(lambda: table.viewport().height() > 2 * table.verticalHeader().length())


def test_a_bar_below_columns_covers_no_row(qtbot: QtBot, table: FigureTable[int]) -> None:
    wide = [FigureRow(n, ["figure " * 20, "figure " * 20]) for n in range(3)]
    table.show_rows(("n", "n²"), wide)
    qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() > 0)
    qtbot.waitUntil(lambda: table.viewport().height() >= table.verticalHeader().length())


@pytest.mark.parametrize("ends_in_words", (False, True))
def test_the_columns_fill_the_width(qtbot: QtBot, ends_in_words: bool) -> None:
    """No empty column after the last one; figures share the room, a text has all of it."""
    table: FigureTable[int] = FigureTable("Figures", ends_in_words=ends_in_words)
    qtbot.addWidget(table)
    table.resize(400, 300)
    table.show()
    table.show_rows(("n", "n²"), rows(3))
    header = table.horizontalHeader()
    for width in (400, 900, 300):
        table.resize(width, 300)
        qtbot.waitUntil(lambda: 0 <= header.width() - header.length() < header.count())
        assert (header.sectionSize(1) > 3 * header.sectionSize(0)) is ends_in_words
