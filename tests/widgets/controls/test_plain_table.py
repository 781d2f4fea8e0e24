"""Columns and cells that fit their headings, and widths that stay as the user made them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import (
    QApplication,
    QTableWidget,
    QTableWidgetItem,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)
from pytestqt.qtbot import QtBot

from widgets.controls.layouts import dressed
from widgets.controls.tables import FittedColumns, SmallFigures, dress_table
from widgets.theme.theme import apply_text_size, apply_theme

HEADINGS = ("Request", "Queue, ms", "A heading of several words")


@pytest.fixture
def table(qapp: QApplication, qtbot: QtBot) -> Iterator[QTableWidget]:
    apply_theme(qapp, "light")
    made = QTableWidget(1, len(HEADINGS))
    qtbot.addWidget(made)
    made.setHorizontalHeaderLabels(HEADINGS)
    FittedColumns(made.horizontalHeader(), lambda: {0: 300, 1: 20})
    made.show()
    yield made
    apply_text_size(qapp, 100)


def test_no_column_is_narrower_than_its_heading(table: QTableWidget) -> None:
    header = table.horizontalHeader()
    assert header.sectionSize(0) == 300
    assert header.sectionSize(1) == header.sectionSizeHint(1) > 20
    assert header.sectionSize(2) == header.defaultSectionSize()  # not one of these


def test_they_follow_the_size_of_text(
    qapp: QApplication, qtbot: QtBot, table: QTableWidget
) -> None:
    header = table.horizontalHeader()
    before = header.sectionSize(1)
    apply_text_size(qapp, 160)
    qtbot.waitUntil(lambda: header.sectionSize(1) == header.sectionSizeHint(1) > before)
    apply_text_size(qapp, 100)
    qtbot.waitUntil(lambda: header.sectionSize(1) == before)


def test_the_users_width_stays(qapp: QApplication, qtbot: QtBot, table: QTableWidget) -> None:
    header = table.horizontalHeader()
    header.resizeSection(1, 77)
    before = header.sectionSizeHint(2)
    apply_text_size(qapp, 160)
    qtbot.waitUntil(lambda: header.sectionSizeHint(2) > before)
    assert (header.sectionSize(0), header.sectionSize(1)) == (300, 77)


def test_the_widest_column_takes_the_room_that_is_left(qtbot: QtBot) -> None:
    table = QTableWidget(1, 3)
    qtbot.addWidget(table)
    header = table.horizontalHeader()
    FittedColumns(header, lambda: dict.fromkeys(range(3), 100), widest=0)
    table.show()
    for width in (900, 200, 600):  # of three columns of at least 100 pixels
        table.resize(width, 200)
        qtbot.waitUntil(lambda: header.length() == max(300, header.width()))
        assert (header.sectionSize(1), header.sectionSize(2)) == (100, 100)
    header.resizeSection(0, 150)  # the user's width stays
    table.resize(900, 200)
    qtbot.waitUntil(lambda: header.width() > 600)
    assert header.sectionSize(0) == 150


def test_columns_that_come_back_are_fitted_again(qtbot: QtBot) -> None:
    table = QTableWidget(1, 5)
    qtbot.addWidget(table)
    header = table.horizontalHeader()
    columns = FittedColumns(header, lambda: dict.fromkeys(range(table.columnCount()), 130))
    table.show()
    for count in (2, 6, 1, 5):
        table.setColumnCount(count)
        columns.fit()
        assert [header.sectionSize(column) for column in range(count)] == [130] * count


def _left_of_text(widget: QWidget) -> int:
    """x of the first column of pixels that differs from the background."""
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    column = lambda x: {image.pixel(x, y) for y in range(4, 14)}
    return next(x for x in range(2, image.width()) if len(column(x)) > 1)


def test_cells_begin_where_their_headings_do(qapp: QApplication, qtbot: QtBot) -> None:
    apply_theme(qapp, "light")
    table = QTableWidget(1, 1)
    qtbot.addWidget(table)
    dress_table(table, "Requests")
    table.setHorizontalHeaderLabels(["HH"])
    table.setItem(0, 0, QTableWidgetItem("HH"))
    table.show()
    assert abs(_left_of_text(table.viewport()) - _left_of_text(table.horizontalHeader())) <= 1


def test_cells_of_a_tree_without_roots_do_too(qapp: QApplication, qtbot: QtBot) -> None:
    apply_theme(qapp, "light")
    tree = dressed(QTreeWidget(), "Changes", padded=True)
    qtbot.addWidget(tree)
    tree.setRootIsDecorated(False)
    tree.setHeaderLabels(["HH"])
    tree.addTopLevelItem(QTreeWidgetItem(["HH"]))
    tree.show()
    assert abs(_left_of_text(tree.viewport()) - _left_of_text(tree.header())) <= 1


def test_rows_are_as_low_as_before_when_the_text_is_small_again(
    qtbot: QtBot, qapp: QApplication, table: QTableWidget
) -> None:
    SmallFigures(table)
    table.show()
    before = table.rowHeight(0)
    apply_text_size(qapp, 160)
    assert table.rowHeight(0) > before
    qapp.processEvents()
    apply_text_size(qapp, 100)
    assert table.rowHeight(0) == before
