"""Figures stand beside their labels, however many columns there are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.quantize.figure_views import Cell, FigureGrid


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

    def row() -> list[QLabel]:
        labels = [label for label in grid.findChildren(QLabel) if label.isVisibleTo(grid)]
        return sorted((x for x in labels if x.text() in ("A label", "1.25")), key=QLabel.x)

    qtbot.waitUntil(lambda: len(row()) == columns + 1)
    grid.layout().activate()
    label, *figures = row()
    assert figures[0].geometry().right() - label.geometry().right() < 200
    steps = [b.geometry().right() - a.geometry().right() for a, b in pairwise(figures)]
    assert all(step < 200 for step in steps)
