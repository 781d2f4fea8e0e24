"""Figures stand beside their labels, however many columns there are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.features.quantize.figures import Cell, FigureGrid, Tile, TileGrid, even_rows
from widgets.controls.lines import ElidedLine


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_figures_are_close_to_their_labels_in_a_wide_place(qtbot: QtBot, columns: int) -> None:
    grid = FigureGrid("Figures", 60)
    qtbot.addWidget(grid)
    grid.resize(1600, 200)
    grid.show()
    heads = ["", *(f"Model {place}" for place in range(columns))]
    for _ in range(2):  # the second time with other columns than the first
        grid.show_rows(["", *heads, "x"], [[Cell("A label")] * (columns + 3)])
        grid.show_rows(heads, [[Cell("A label"), *[Cell("1.25")] * columns]])

    def row() -> list[QWidget]:
        labels = [*grid.findChildren(ElidedLine), *grid.findChildren(QLabel)]
        shown = [label for label in labels if label.isVisibleTo(grid)]
        return sorted((x for x in shown if x.text() in ("A label", "1.25")), key=QWidget.x)

    qtbot.waitUntil(lambda: len(row()) == columns + 1)
    grid.layout().activate()
    label, *figures = row()
    assert figures[0].geometry().right() - label.geometry().right() < 200
    steps = [b.geometry().right() - a.geometry().right() for a, b in pairwise(figures)]
    assert all(step < 200 for step in steps)


@given(st.integers(0, 40), st.integers(1, 12))
def test_rows_of_tiles_are_few_and_even(count: int, most: int) -> None:
    rows = even_rows(count, most)
    assert sum(rows) == count and len(rows) == -(-count // most)
    assert all(0 < size <= most for size in rows)
    assert not rows or max(rows) - min(rows) <= 1


@pytest.mark.parametrize(
    ("count", "width", "rows"),
    [(6, 1000, [3, 3]), (6, 1300, [6]), (7, 700, [3, 2, 2]), (5, 900, [3, 2]), (3, 150, [1, 1, 1])],
)
def test_no_tile_stands_alone_and_every_row_is_full(
    qtbot: QtBot, count: int, width: int, rows: list[int]
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(2000, 400)
    grid = TileGrid()
    grid.setParent(window)
    grid.resize(2000, 400)
    window.show()
    grid.show_tiles([Tile(f"Figure {n}", "1.25", "of 2") for n in range(count)])
    grid.resize(width, 400)
    qtbot.waitUntil(lambda: all(frame.isVisible() for frame in grid._tiles))
    grid.layout().activate()
    assert grid.rows == rows
    tops = sorted(frame.y() for frame in grid._tiles)
    assert [tops.count(top) for top in sorted(set(tops))] == rows
    for top in set(tops):
        row = [frame.geometry() for frame in grid._tiles if frame.y() == top]
        assert min(g.left() for g in row) == 0 and max(g.right() for g in row) == width - 1


def test_a_name_without_room_ends_in_an_ellipsis_and_has_it_all_again_with_room(
    qtbot: QtBot,
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(1200, 200)
    grid = FigureGrid("Figures", 60)
    grid.setParent(window)
    name = "Decode, one request, tokens per second"
    grid.show_rows(["", "Reference", "Model"], [[Cell(name), Cell("12,611.2"), Cell("1.25")]])
    grid.resize(260, 200)
    window.show()
    (label,) = (one for one in grid.findChildren(ElidedLine) if one.accessibleName() == name)
    qtbot.waitUntil(label.is_cut)
    assert label.toolTip() == name
    grid.resize(1000, 200)
    qtbot.waitUntil(lambda: not label.is_cut())


def test_a_column_title_is_whole_where_there_is_room(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(1200, 200)
    grid = FigureGrid("Figures", 60)
    grid.setParent(window)
    title = "Starter model, compressed-tensors INT4, KV INT8"
    grid.show_rows(["", title, "change"], [[Cell("TTFT"), Cell("1.25"), Cell("+1 %")]])
    window.show()
    (head,) = (one for one in grid.findChildren(ElidedLine) if one.text() == title)
    grid.resize(260, 200)
    qtbot.waitUntil(head.is_cut)
    least = head.width()
    grid.resize(1000, 200)
    qtbot.waitUntil(lambda: not head.is_cut())
    assert 0 < least < head.width()
